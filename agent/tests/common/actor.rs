//! The test program in other roles: an application that joins, piggybacks, crashes in its own ways. It is told what to do on standard input,
//! a line at a time, and says what became of it on standard output.

use fide_client::group::{Event, Group, Options};
use fide_client::{Client, Connection};
use fide_wire::control::{GroupOrder, Request, Selector};
use fide_wire::session::{self, Piece, ToAgent, ToClient};
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

pub const ROLE: &str = "FIDE_E2E_ROLE";
pub const ARGUMENTS: &str = "FIDE_E2E_ARGUMENTS";
pub const SOCKET: &str = "FIDE_E2E_SOCKET";
/// What an application joins as before it is told anything.
const JOINS: &str = "FIDE_E2E_JOINS";
/// Before what an actor says.
pub const MARK: &str = "ACTOR: ";

pub fn say(text: impl std::fmt::Display) {
    println!("{MARK}{text}");
}

fn outcome<T: std::fmt::Debug, E: std::fmt::Display>(result: Result<T, E>) {
    match result {
        Ok(value) => say(format!("ok {value:?}")),
        Err(e) => say(format!("error {e}")),
    }
}

/// Runs the role that the environment names; nothing without one.
pub fn act() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let arguments: Vec<String> = std::env::var(ARGUMENTS).unwrap_or_default().lines().map(Into::into).collect();
    let socket: PathBuf = std::env::var_os(SOCKET).unwrap_or_default().into();
    match role.as_str() {
        "application" => application(&socket),
        "nobody" => nobody(&socket, &arguments),
        "opener" => opener(&socket, &arguments),
        "grouped" => grouped(&socket, &arguments),
        "hoard" => hoard(&socket, &arguments),
        "beats" => beats(&socket, &arguments),
        "spy" => spy(&socket, &arguments),
        "member" => super::member::act(&socket),
        "worst" => super::worst::act(&socket, &arguments),
        "user" => member(&socket, &arguments),
        "subordinates" => super::member::subordinates(&socket, &arguments),
        other => panic!("no role {other}"),
    }
}

/// Joins, quits, piggybacks and ends as it is told.
fn application(socket: &std::path::Path) {
    let client = Client::open(Some(socket)).unwrap();
    let mut progress: Vec<std::sync::Arc<fide_client::Progress>> = Vec::new();
    let ticking = std::sync::Arc::new(AtomicBool::new(false));
    let mut others = Vec::new();
    say("ready");
    if let Ok(name) = std::env::var(JOINS) {
        outcome(client.join(&name, 0));
    }
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "join" => outcome(client.join(words[1], words[2].parse().unwrap())),
            "quit" => outcome(client.quit()),
            // By another client of the same process.
            "join-anew" => {
                let other = Client::open(Some(socket)).unwrap();
                outcome(other.join(words[1], 0));
                others.push(other);
            }
            "rejoin" => outcome(client.reconnect().map(|resumed| resumed.joined.map(Result::unwrap))),
            // Becomes another program.
            "exec" => panic!("{}", Command::new(words[1]).args(&words[2..]).exec()),
            // Becomes this very program again, which joins at once if it is told as what.
            "exec-again" => {
                let mut again = Command::new(std::env::current_exe().unwrap());
                again.args(std::env::args().skip(1)).env_remove(JOINS).envs(words.get(1).map(|name| (JOINS, name)));
                panic!("{}", again.exec());
            }
            // piggyback LENGTH FROM COUNT: messages that begin with a running number and are LENGTH bytes long.
            "piggyback" => {
                let [length, from, count] = [1, 2, 3].map(|i| words[i].parse::<usize>().unwrap());
                let mut sent = Ok(0);
                for i in from..from + count {
                    let mut message = vec![(i % 251) as u8; length];
                    if length >= 4 {
                        message[..4].copy_from_slice(&(i as u32).to_be_bytes());
                    }
                    let result = loop {
                        match client.piggyback(&message) {
                            // Sleep: interval of the poll for room in the bridge.
                            Err(fide_client::Error::Full) => std::thread::sleep(std::time::Duration::from_micros(200)),
                            other => break other,
                        }
                    };
                    match result {
                        Ok(()) => sent = sent.map(|n| n + 1),
                        Err(e) => {
                            sent = Err(e);
                            break;
                        }
                    }
                }
                outcome(sent);
            }
            // Sends for ever, until it is ended.
            "stream" => {
                say("ok streaming");
                for i in 0u32.. {
                    while client.piggyback(&i.to_be_bytes()).is_err() {
                        // Sleep: interval of the poll for room in the bridge.
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                }
            }
            // progress MILLISECONDS: a counter with this limit.
            "progress" => {
                let limit = std::time::Duration::from_millis(words[1].parse().unwrap());
                outcome(client.progress(limit).map(|p| progress.push(std::sync::Arc::new(p))));
            }
            // A thread that ticks for ever, all counters.
            "tick-on" => {
                ticking.store(true, Ordering::Release);
                let (all, on) = (progress.clone(), ticking.clone());
                std::thread::spawn(move || {
                    while on.load(Ordering::Acquire) {
                        all.iter().for_each(|p| p.tick());
                        // Sleep: interval of the ticks, far below every limit.
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                });
                outcome::<_, String>(Ok(()));
            }
            // That thread ends: nothing ticks.
            "tick-off" => {
                ticking.store(false, Ordering::Release);
                outcome::<_, String>(Ok(()));
            }
            // A thread that turns in a circle, as a livelock does.
            "spin" => {
                std::thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
                outcome::<_, String>(Ok(()));
            }
            "begin" => {
                progress.iter().for_each(|p| p.begin());
                outcome::<_, String>(Ok(()));
            }
            "end" => {
                progress.iter().for_each(|p| p.end());
                outcome::<_, String>(Ok(()));
            }
            "limit" => {
                let limit = std::time::Duration::from_millis(words[1].parse().unwrap());
                outcome(client.set_progress_limit(&progress[0], limit));
            }
            // serve PORT: whoever connects has each byte back. Its sockets are inherited.
            "serve" => {
                serve(words[1].parse().unwrap());
                heir();
            }
            // child: one that has inherited the sockets of now, and does nothing.
            "child" => heir(),
            "end-connections" => {
                let ports: Vec<u16> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
                outcome(client.end_connections(&ports));
            }
            "report" => outcome(client.report(words[1], words[2] == "hung", "as told")),
            "reconnect" => outcome(client.reconnect().map(|_| ())),
            "exit" => std::process::exit(words[1].parse().unwrap()),
            other => panic!("no order {other}"),
        }
    }
}

fn serve(port: u16) {
    let listener = std::net::TcpListener::bind(("0.0.0.0", port)).unwrap();
    inherit(&listener);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            inherit(&stream);
            std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
}

fn inherit(socket: &impl std::os::fd::AsRawFd) {
    // SAFETY: integers only.
    assert_eq!(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, 0) }, 0);
}

/// Says its number. Nobody waits for it: it outlives this process.
#[expect(clippy::zombie_processes, reason = "it outlives this process")]
fn heir() {
    let quiet = std::process::Stdio::null;
    let child = std::process::Command::new("sleep").arg("300").stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().unwrap();
    say(format!("ok {}", child.id()));
}

pub fn become_nobody() {
    become_user(65534);
}

pub fn become_user(uid: u32) {
    // SAFETY: integers only; the groups go first, while that is still permitted.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(uid), 0);
        assert_eq!(libc::setuid(uid), 0);
    }
}

/// An ordinary user of the socket, whose number is the argument: asks what it is told to ask, and starts and ends processes of its own.
fn member(socket: &std::path::Path, arguments: &[String]) {
    become_user(arguments[0].parse().unwrap());
    let connection = Connection::open(Some(socket)).unwrap();
    let mut children: Vec<std::process::Child> = Vec::new();
    say(format!("ok {}", std::process::id()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            // ask REQUEST: a request in JSON, and the reply.
            "ask" => outcome(connection.request(&serde_json::from_str(rest).unwrap()).map(|r| r.reply)),
            // start PROGRAM: its number.
            "start" => {
                children.push(std::process::Command::new(rest).arg("1000").spawn().unwrap());
                say(format!("ok {}", children.last().unwrap().id()));
            }
            // end: the process that was started last is killed.
            "end" => {
                let mut child = children.pop().unwrap();
                child.kill().unwrap();
                outcome(child.wait());
            }
            // pass-on: a child goes on with the connection, and the process that opened it ends.
            "pass-on" => {
                // SAFETY: the child goes on with what this thread alone uses: the connection, standard input and output.
                if unsafe { libc::fork() } != 0 {
                    // SAFETY: ends at once, without what would run at exit.
                    unsafe { libc::_exit(0) };
                }
                say("ok passed on");
            }
            other => panic!("no order {other}"),
        }
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// As an ordinary user: has a program of its own watched by name; a line on standard input ends that process, the next starts another.
fn spy(socket: &std::path::Path, arguments: &[String]) {
    become_nobody();
    let (program, name) = (&arguments[0], &arguments[1]);
    let start = || std::process::Command::new(program).arg("1000").spawn().unwrap();
    let mut orders = std::io::stdin().lock().lines();
    let mut child = start();
    let connection = Connection::open(Some(socket)).unwrap();
    let request = Request::watch("spy", Selector::Name(name.clone()));
    outcome(connection.request(&request).map(|r| r.reply));
    orders.next();
    child.kill().unwrap();
    child.wait().unwrap();
    say("ok ended");
    orders.next();
    child = start();
    say(format!("ok {}", child.id()));
    orders.next();
    child.kill().unwrap();
    child.wait().unwrap();
    outcome(connection.request(&Request::Unwatch { name: "spy".into() }).map(|r| r.reply));
}

/// As an ordinary user: may it watch this process, and its own?
fn nobody(socket: &std::path::Path, arguments: &[String]) {
    become_nobody();
    let connection = Connection::open(Some(socket)).unwrap();
    let ask = |name: &str, pid: u32| {
        let request = Request::watch(name, Selector::Pid(pid));
        outcome(connection.request(&request).map(|r| r.reply));
    };
    ask("others", arguments[0].parse().unwrap());
    ask("mine", std::process::id());
    outcome(connection.request(&Request::Unwatch { name: "roots".into() }).map(|r| r.reply));
    outcome(connection.request(&Request::Reload).map(|r| r.reply));
    outcome(connection.request(&Request::Unwatch { name: "mine".into() }).map(|r| r.reply));
}

/// As an ordinary user: may it open this group, or change it?
fn opener(socket: &std::path::Path, arguments: &[String]) {
    become_nobody();
    let connection = Connection::open(Some(socket)).unwrap();
    let name = arguments[0].clone();
    let open = Request::OpenGroup { name: name.clone(), client: 0, behind: 0, last_number: 0, generation: 0, bundles: false };
    outcome(connection.request(&open).map(|r| r.reply));
    let order = GroupOrder::Leave { name, force: false };
    outcome(connection.request(&Request::Group { order }).map(|r| r.reply));
    outcome(connection.request(&Request::Group { order: GroupOrder::Status }).map(|r| r.reply));
}

/// As the user whose number is the argument: opens a group, proposes and gives orders as it is told.
fn grouped(socket: &std::path::Path, arguments: &[String]) {
    become_user(arguments[0].parse().unwrap());
    let mut open: Option<Group> = None;
    let until = || std::time::Instant::now() + super::PATIENCE;
    let poll = |group: &mut Group| group.poll(Some(std::time::Duration::from_millis(100)));
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            // open NAME CLIENT
            "open" => {
                let options = Options { path: Some(socket.into()), client: words[2].parse().unwrap(), ..Options::default() };
                open = None;
                outcome(Group::open_with(words[1], options).map(|group| open.insert(group).client()));
            }
            // propose VALUE: until it is decided or refused.
            "propose" => {
                let group = open.as_mut().unwrap();
                let (number, end) = (group.propose(words[1].as_bytes()).unwrap(), until());
                let said = loop {
                    match poll(group) {
                        Ok(Some(Event::Entry(entry))) if entry.is_own(number, group.client()) => break "ok decided".into(),
                        Ok(Some(Event::Refused { why, .. })) => break format!("error {why}"),
                        Err(e) => break format!("error {e}"),
                        Ok(_) => assert!(std::time::Instant::now() < end, "neither decided nor refused"),
                    }
                };
                say(said);
            }
            // read VALUE: until this entry comes.
            "read" => {
                let (group, end) = (open.as_mut().unwrap(), until());
                let said = loop {
                    match poll(group) {
                        Ok(Some(Event::Entry(entry))) if entry.bytes == words[1].as_bytes() => break "ok read".into(),
                        Err(e) => break format!("error {e}"),
                        Ok(_) => assert!(std::time::Instant::now() < end, "it does not come"),
                    }
                };
                say(said);
            }
            // hand-in: a state of four bytes.
            "hand-in" => {
                let group = open.as_mut().unwrap();
                outcome(group.keep_snapshot(group.index(), b"null"));
            }
            // raw-hand-in NAME INDEX: the same on a socket of its own, and a proposal: what is said to
            // that.
            "raw-hand-in" => {
                let connection = Connection::open(Some(socket)).unwrap();
                let name = words[1].into();
                let open = Request::OpenGroup { name, client: 0, behind: 0, last_number: 0, generation: 0, bundles: false };
                let socket = std::os::unix::net::UnixDatagram::from(connection.request(&open).unwrap().fds.remove(0));
                socket.set_nonblocking(false).unwrap();
                let piece = Piece { index: words[2].parse().unwrap(), total: 4, at: 0, bytes: b"null" };
                let mut out = Vec::new();
                for message in [ToAgent::Snapshot(piece), ToAgent::Propose { skipped: 0, number: 1, bytes: b"raw" }] {
                    message.write(&mut out);
                    socket.send(&out).unwrap();
                }
                let mut buffer = vec![0; session::MESSAGE_MAX];
                let said = loop {
                    let length = socket.recv(&mut buffer).unwrap();
                    match ToClient::read(&buffer[..length]) {
                        Some(ToClient::Refused { text, .. }) => break format!("error {text}"),
                        Some(ToClient::Entry { bytes: b"raw", .. }) => break "ok decided".into(),
                        _ => assert!(length > 0, "the session has ended"),
                    }
                };
                say(said);
            }
            // lost: until the agent has ended the session.
            "lost" => {
                let (group, end) = (open.as_mut().unwrap(), until());
                while poll(group).is_ok() {
                    assert!(std::time::Instant::now() < end, "the session goes on");
                }
                outcome(group.reconnect());
            }
            // order ORDER: in JSON.
            "order" => {
                let order: GroupOrder = serde_json::from_str(line.split_once(' ').unwrap().1).unwrap();
                let connection = Connection::open(Some(socket)).unwrap();
                outcome(connection.request(&Request::Group { order }).map(|r| r.reply));
            }
            other => panic!("no order {other}"),
        }
    }
}

/// An application with heartbeats of its own: listens at a UDP port for those of others, and sends its own.
fn beats(socket: &std::path::Path, arguments: &[String]) {
    // Into its cgroup, before any socket is made; as nobody, before the agent sees who asks.
    for argument in arguments {
        match argument.split_once(' ') {
            Some(("enter", group)) => {
                std::fs::write(format!("{group}/cgroup.procs"), std::process::id().to_string()).unwrap();
            }
            _ => become_nobody(),
        }
    }
    let client = std::sync::Arc::new(Client::open(Some(socket)).unwrap());
    // The first one on its host listens.
    let bind = std::net::UdpSocket::bind;
    let ear = bind("0.0.0.0:4000").or_else(|_| bind("0.0.0.0:0")).unwrap();
    ear.set_nonblocking(true).unwrap();
    let mouth = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let stream = std::cell::RefCell::new(None::<std::net::TcpStream>);
    let ms = |text: &str| std::time::Duration::from_millis(text.parse().unwrap());
    let now = fide_client::monotonic_ns;
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            // look: empties its socket. How many there were, and when the last of them was sent.
            "look" => {
                let (mut count, mut last, mut buffer) = (0, 0, [0; 64]);
                while let Ok(n) = ear.recv(&mut buffer) {
                    count += 1;
                    last = buffer[..n].try_into().map_or(0, u64::from_ne_bytes);
                }
                say(format!("{count} {last}"));
            }
            // check PEER SINCE WAIT: with a check of the interval that begins then and ends now.
            "check" => match client.check(words[1], words[2].parse().unwrap(), 0, ms(words[3])) {
                Ok(checked) => say(serde_json::to_string(&checked).unwrap()),
                Err(e) => say(format!("error {:?} {e}", e.code())),
            },
            // pair PEER AHEAD WAIT: a check while another one of this client waits for its
            // deadline, which nobody waits for.
            "pair" => {
                let (other, peer) = (client.clone(), words[1].to_owned());
                let deadline_ns = now() + ms(words[2]).as_nanos() as u64;
                let long = std::thread::spawn(move || other.check(&peer, now(), deadline_ns, ms("60000")));
                client.check(words[1], now(), 0, ms(words[3])).unwrap();
                let under_way = !long.is_finished();
                say(if under_way { "answered, and the other was under way" } else { "answered behind the other" });
            }
            // towards ADDRESS: a datagram socket; towards-tcp: a stream.
            "towards" => outcome(mouth.connect(words[1])),
            "towards-tcp" => outcome(std::net::TcpStream::connect(words[1]).map(|s| *stream.borrow_mut() = Some(s))),
            // write TEXT: into the stream.
            "write" => {
                use std::io::Write;
                outcome(stream.borrow_mut().as_mut().expect("a stream").write_all(words[1].as_bytes()));
            }
            // beat VALID WAIT: t_valid is so much from now.
            "beat" => {
                use std::os::fd::AsFd;
                let (valid_ns, wait) = (now() + ms(words[1]).as_nanos() as u64, ms(words[2]));
                let beat = now().to_ne_bytes();
                let done = match stream.borrow().as_ref() {
                    Some(s) => client.send_heartbeat(s.as_fd(), &beat, valid_ns, wait),
                    None => client.send_heartbeat(mouth.as_fd(), &beat, valid_ns, wait),
                };
                answer(done);
            }
            // beat-on VALID: again and again, each time for so long; the last t_valid, and what ended it.
            "beat-on" => {
                use std::os::fd::AsFd;
                let (valid, mut last_ns) = (ms(words[1]), 0);
                let ended = loop {
                    match client.send_heartbeat(mouth.as_fd(), b"beat", now() + valid.as_nanos() as u64, valid) {
                        Ok(valid_ns) => last_ns = valid_ns,
                        Err(e) => break e,
                    }
                    // Sleep: interval of the heartbeats.
                    std::thread::sleep(valid / 10);
                };
                say(format!("{last_ns} {:?} {ended}", ended.code()));
            }
            // time COUNT: how long heartbeats take that extend by a minute, median and p99 in µs.
            "time" => {
                use std::os::fd::AsFd;
                let mut took: Vec<u64> = (0..words[1].parse().unwrap())
                    .map(|_| {
                        let before = now();
                        client.send_heartbeat(mouth.as_fd(), b"beat", before + 60_000_000_000, ms("1000")).unwrap();
                        now() - before
                    })
                    .collect();
                took.sort_unstable();
                say(format!("{} {}", took[took.len() / 2] / 1000, took[took.len() * 99 / 100] / 1000));
            }
            // extend KNOWN_AGO VALID: known so long ago, t_valid so much from now.
            "extend" => answer(client.extend(now() - ms(words[1]).as_nanos() as u64, now() + ms(words[2]).as_nanos() as u64)),
            "anew" => answer(client.begin_anew(now() + ms(words[1]).as_nanos() as u64)),
            // Sends for ever, whether it may or not.
            "stream" => {
                let other = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                let to = words[1].to_owned();
                std::thread::spawn(move || {
                    loop {
                        let _ = other.send_to(&fide_client::monotonic_ns().to_ne_bytes(), &to); // blocked, perhaps
                        // Sleep: interval of the packets.
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                });
                say("ok");
            }
            other => panic!("no order {other}"),
        }
    }
}

fn answer(done: Result<u64, fide_client::Error>) {
    match done {
        Ok(valid_ns) => say(format!("ok {valid_ns}")),
        Err(e) => say(format!("error {:?} {e}", e.code())),
    }
}

/// An application of an ordinary user that may propose to the group `orders`, at its worst: as many sessions as it gets, none of which
/// it reads; large values without end; states of which only a part comes; and all of it given up at once. Says what it did.
fn hoard(socket: &std::path::Path, arguments: &[String]) {
    use super::worst::Rng;
    use std::io::ErrorKind::WouldBlock;
    use std::os::unix::net::UnixDatagram;
    let numbers: Vec<u64> = arguments.iter().map(|number| number.parse().unwrap()).collect();
    become_user(numbers[0] as u32);
    let mut random = Rng::new(numbers[1]);
    say("ready");
    let end = std::time::Instant::now() + std::time::Duration::from_millis(numbers[2]);
    let (mut sessions, mut opened, mut refused, mut sent): (Vec<(UnixDatagram, u64)>, u64, u64, u64) = (Vec::new(), 0, 0, 0);
    let mut out = Vec::new();
    let value = vec![7; 60 << 10];
    while std::time::Instant::now() < end {
        match random.below(100) {
            0 => sessions.clear(),
            1..10 => {
                // Connections are bounded, too: a new one for each session.
                let open = Request::OpenGroup {
                    name: "orders".into(),
                    client: 0,
                    behind: 0,
                    last_number: 0,
                    generation: 0,
                    bundles: random.once_in(2),
                };
                match Connection::open(Some(socket)).and_then(|connection| connection.request(&open)) {
                    Ok(mut reply) => {
                        let socket = UnixDatagram::from(reply.fds.remove(0));
                        socket.set_nonblocking(true).unwrap();
                        sessions.push((socket, 0));
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            what => {
                let Some(at) = (!sessions.is_empty()).then(|| random.below(sessions.len())) else { continue };
                let (socket, number) = &mut sessions[at];
                if what < 60 {
                    *number += 1;
                    ToAgent::Propose { skipped: 0, number: *number, bytes: &value }.write(&mut out);
                } else {
                    let (at, total) = ((*number % 1000) * value.len() as u64, 63 << 20);
                    *number = if what < 98 { *number + 1 } else { 0 };
                    ToAgent::Snapshot(Piece { index: 1, total, at, bytes: &value }).write(&mut out);
                }
                match socket.send(&out) {
                    Ok(_) => sent += 1,
                    Err(e) if e.kind() == WouldBlock => {}
                    Err(_) => drop(sessions.swap_remove(at)),
                }
            }
        }
    }
    drop(sessions);
    say(format!("opened {opened}, refused {refused}, sent {sent}"));
}
