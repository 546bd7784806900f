//! A member at his worst: an ordinary user who may open the control socket, and asks for all that
//! can be asked, well-formed and not, over many connections, as fast as he can. The same seed asks
//! the same.

use super::actor::{become_nobody, say};
use super::member::Raw;
use fide_wire::control::{FenceOrder, GroupOrder, MaintenanceOrder, PROTOCOL, Request, Selector};
use fide_wire::verdict::VerdictId;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Numbers that look random (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Small, or anything.
    fn any(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => self.below(20) as u64,
            2 => u64::MAX,
            _ => self.number(),
        }
    }
}

/// Kinds of requests.
pub const KINDS: usize = 23;

/// Which kind it is.
pub const fn kind(request: &Request) -> usize {
    // A kind that is new here is to be generated below.
    match request {
        Request::Hello { .. } => 0,
        Request::Subscribe { .. } => 1,
        Request::Monitor { .. } => 2,
        Request::Unmonitor { .. } => 3,
        Request::Join { .. } => 4,
        Request::Progress { .. } => 5,
        Request::Report { .. } => 6,
        Request::Quit => 7,
        Request::Watch { .. } => 8,
        Request::Unwatch { .. } => 9,
        Request::Status => 10,
        Request::Events { .. } => 11,
        Request::Explain { .. } => 12,
        Request::Reload => 13,
        Request::Forget { .. } => 14,
        Request::Fence { .. } => 15,
        Request::Check { .. } => 16,
        Request::Became { .. } => 17,
        Request::Extend { .. } => 18,
        Request::Group { .. } => 19,
        Request::OpenGroup { .. } => 20,
        Request::Maintenance { .. } => 21,
        Request::EndConnections { .. } => 22,
    }
}

fn name(rng: &mut Rng) -> String {
    match rng.below(12) {
        0 => String::new(),
        1 => "n".repeat(rng.below(2_000)),
        2 => "ünï\u{0}\n\"".into(),
        3 => (*rng.one_of(&["db", "redis", "h1", "@h1", "*", "p1"])).into(),
        _ => format!("w{}", rng.below(200)),
    }
}

fn target(rng: &mut Rng) -> String {
    match rng.below(6) {
        0 => "*".into(),
        1 => format!("@h{}", 1 + rng.below(4)),
        2 => name(rng),
        _ => format!("{}@h{}", name(rng), 1 + rng.below(4)),
    }
}

fn selector(rng: &mut Rng, own: &[u32]) -> Selector {
    match rng.below(9) {
        0 => Selector::Name((*rng.one_of(&["sleep", "systemd", "", "no-such-program"])).into()),
        1 => Selector::Unit((*rng.one_of(&["ssh.service", "x.service", "../x"])).into()),
        2 => Selector::Cgroup((*rng.one_of(&["/", "user.slice", "0123456789abcdef"])).into()),
        3 => Selector::Port(rng.number() as u16),
        4 => Selector::Pid(rng.any() as u32),
        _ if own.is_empty() => Selector::Pid(1),
        _ => Selector::Pid(*rng.one_of(own)),
    }
}

/// A request of this kind; `own` are processes of this user.
pub fn request(rng: &mut Rng, kind: usize, own: &[u32]) -> Request {
    match kind {
        0 => Request::Hello { protocol: if rng.once_in(4) { rng.number() as u32 } else { PROTOCOL } },
        1 => Request::Subscribe { socket_only: rng.once_in(2) },
        2 => Request::Monitor { target: target(rng), pbsize: rng.any() as u32, timeout_ns: rng.any() },
        3 => Request::Unmonitor { target: target(rng) },
        4 => Request::Join { name: name(rng), pbsize: rng.any() as u32, resumes: (rng.below(2) == 0).then(|| rng.any() as u32) },
        5 => {
            let limit_ns = *rng.one_of(&[0, 1, 10_000_000, 20_000_000, 1_000_000_000, u64::MAX]);
            Request::Progress { counter: rng.below(20) as u32, limit_ns }
        }
        6 => {
            let reason = if rng.once_in(2) { String::new() } else { "r".repeat(rng.below(600)) };
            Request::Report { name: name(rng), hung: rng.once_in(2), reason }
        }
        7 => Request::Quit,
        8 => {
            let user = rng.once_in(8).then(|| (*rng.one_of(&["root", "nobody", "0", "no-such-user", ""])).into());
            Request::Watch { name: name(rng), selector: selector(rng, own), user, containers: rng.once_in(4) }
        }
        9 => Request::Unwatch { name: name(rng) },
        10 => Request::Status,
        11 => Request::Events { from: rng.any(), last: rng.any(), follow: rng.once_in(2) },
        12 => Request::Explain { id: VerdictId(rng.any()), incarnation: None },
        13 => Request::Reload,
        14 => Request::Forget { host: (*rng.one_of(&["h1", "h3", "", "no-such-host"])).into() },
        15 => Request::Fence { order: *rng.one_of(&[FenceOrder::Status, FenceOrder::Shut, FenceOrder::Recover]) },
        16 => {
            let (since_ns, deadline_ns) = (rng.any(), if rng.once_in(2) { 0 } else { rng.any() });
            let wait_ns = *rng.one_of(&[0, 1_000_000, 50_000_000, 60_000_000_000, u64::MAX]);
            Request::Check { peer: target(rng), since_ns, deadline_ns, wait_ns }
        }
        17 => {
            let count = *rng.one_of(&[0, 1, 64, 65, 2_000]);
            let host = ["h1", "h2", "nobody"][rng.below(3)];
            let node = fide_wire::name_id(host);
            let instance = |rng: &mut Rng| (if rng.once_in(2) { node } else { rng.any() as u32 }, rng.any() as u32);
            Request::Became { instances: (0..count).map(|_| instance(rng)).collect() }
        }
        22 => {
            let ports = (0..rng.below(20)).map(|_| rng.number() as u16).collect();
            Request::EndConnections { name: name(rng), ports }
        }
        21 => {
            let order = match rng.below(3) {
                0 => MaintenanceOrder::Status,
                1 => MaintenanceOrder::Off { target: rng.once_in(2).then(|| target(rng)) },
                _ => MaintenanceOrder::On { target: target(rng), for_ns: rng.any(), reason: name(rng) },
            };
            Request::Maintenance { order }
        }
        19 => {
            let (name, engine) = (name(rng), (*rng.one_of(&["huc", "hsuc", "", "lowi"])).to_string());
            let order = match rng.below(5) {
                0 => GroupOrder::Status,
                1 => GroupOrder::Join { name },
                2 => GroupOrder::Leave { name, force: false },
                3 => GroupOrder::Switch { name, engine },
                _ => GroupOrder::Create {
                    name,
                    engine,
                    policy: "trust-contract".into(),
                    hosts: vec!["h1".into(), "h2".into()],
                    durable: false,
                    fresh: false,
                },
            };
            Request::Group { order }
        }
        20 => Request::OpenGroup {
            name: name(rng),
            client: rng.any(),
            behind: rng.any(),
            last_number: rng.any(),
            generation: rng.any(),
            bundles: rng.once_in(2),
        },
        _ => Request::Extend { known_ns: rng.any(), valid_ns: rng.any(), anew: rng.once_in(2) },
    }
}

/// Bytes that no client of good will sends.
pub fn hostile(rng: &mut Rng, text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    match rng.below(8) {
        0 => bytes.truncate(1 + rng.below(bytes.len())),
        1 => {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        2 => bytes = (0..1 + rng.below(4_000)).map(|_| rng.number() as u8).collect(),
        3 => bytes = b"[".repeat(1 + rng.below(100_000)),
        4 => bytes = format!("{{\"op\":\"watch\",\"name\":\"{}\"}}", "x".repeat(rng.below(130_000))).into_bytes(),
        5 => bytes.extend_from_within(..),
        6 => bytes = br#"{"op":"events","from":-1,"last":1e400}"#.to_vec(),
        _ => bytes.extend(vec![b' '; rng.below(140_000)]),
    }
    bytes
}

/// Connections of one thread.
const CONNECTIONS: usize = 15;
/// Threads, unless it is told how many.
const THREADS: u64 = 4;
/// From one crash of a process of his to the next.
const CRASH_EVERY: Duration = Duration::from_millis(10);

struct Children(Vec<std::process::Child>);

impl Children {
    fn start(&mut self) {
        self.0.extend(std::process::Command::new("sleep").arg("1000").spawn());
    }

    fn end(&mut self, at: usize) {
        let mut child = self.0.swap_remove(at);
        let _ = child.kill(); // gone already is as good
        let _ = child.wait();
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.end(0);
        }
    }
}

/// Asks until then. `kinds`: only these; empty: all. How often it was asked, and how many replies came.
fn ask_on(socket: &Path, seed: u64, until: Instant, kinds: &[usize]) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let mut connections: Vec<Raw> = Vec::new();
    let mut children = Children(Vec::new());
    (0..10).for_each(|_| children.start());
    let (mut asked, mut replied) = (0, 0);
    let mut crashed = Instant::now();
    while Instant::now() < until {
        if crashed.elapsed() >= CRASH_EVERY {
            crashed = Instant::now();
            children.end(rng.below(children.0.len()));
            children.start();
        }
        if connections.len() < CONNECTIONS && (connections.is_empty() || rng.once_in(8)) {
            let opened = if rng.once_in(20) { Raw::silent(socket) } else { Raw::open(socket) };
            match opened {
                Some(c) => connections.push(c),
                // Sleep: interval of the tries to connect, while there is no room.
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            continue;
        }
        let at = rng.below(connections.len());
        match rng.below(200) {
            0 => {
                connections.swap_remove(at);
                continue;
            }
            1 => connections[at].shut(*rng.one_of(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR])),
            _ => {}
        }
        let own: Vec<u32> = children.0.iter().map(std::process::Child::id).collect();
        let kind = if kinds.is_empty() { rng.below(KINDS) } else { *rng.one_of(kinds) };
        let text = serde_json::to_string(&request(&mut rng, kind, &own)).unwrap();
        let c = &connections[at];
        // Some of it many times in a row, without a look at replies.
        let times = if rng.once_in(10) { 50 } else { 1 };
        let mut full = false;
        for _ in 0..times {
            let bytes = if rng.once_in(20) { hostile(&mut rng, text.clone()) } else { text.clone().into_bytes() };
            full = !c.send_bytes(&bytes, false);
            asked += u64::from(!full);
            if full {
                break;
            }
        }
        // Most replies are read; some connections never read for long.
        let mut silent = true;
        if !at.is_multiple_of(5) || rng.once_in(50) {
            for _ in 0..64 {
                let Some(_) = c.receive_now() else { break };
                silent = false;
                replied += 1;
            }
        }
        if full && silent {
            // Nothing to be had here: another one, or a pause, so that it is the agent that is measured and not this loop.
            if rng.once_in(4) {
                connections.swap_remove(at);
            }
            // Sleep: the pause.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    (asked, replied)
}

fn spin(until: Instant) -> (u64, u64) {
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    (0, 0)
}

/// As an ordinary user, for so long at each line: `spin` keeps as many threads busy without asking
/// anything, `ask` asks. Arguments: seed, seconds, kinds of requests (none: all), and how many
/// threads.
pub fn act(socket: &Path, arguments: &[String]) {
    become_nobody();
    let (seed, seconds): (u64, f64) = (arguments[0].parse().unwrap(), arguments[1].parse().unwrap());
    let kinds: Vec<usize> = arguments.get(2).iter().flat_map(|k| k.split(',')).filter_map(|k| k.parse().ok()).collect();
    let each = arguments.get(3).and_then(|n| n.parse().ok()).unwrap_or(THREADS);
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let asks = line == "ask";
        let threads: Vec<_> = (0..each)
            .map(|thread| {
                let (socket, kinds): (PathBuf, Vec<usize>) = (socket.to_owned(), kinds.clone());
                let seed = seed.wrapping_mul(each).wrapping_add(thread);
                std::thread::spawn(move || if asks { ask_on(&socket, seed, until, &kinds) } else { spin(until) })
            })
            .collect();
        let done = threads.into_iter().map(|t| t.join().unwrap());
        let (asked, replied) = done.fold((0, 0), |(a, r), (asked, replied)| (a + asked, r + replied));
        say(format!("{asked} {replied}"));
    }
}

#[test]
fn every_kind_of_request_is_generated_and_the_same_seed_gives_the_same() {
    let all = |seed| {
        let mut rng = Rng::new(seed);
        (0..KINDS * 20).map(|n| request(&mut rng, n % KINDS, &[7])).collect::<Vec<_>>()
    };
    let generated = all(5);
    assert!(generated.iter().enumerate().all(|(n, request)| kind(request) == n % KINDS));
    assert_eq!(generated, all(5));
    assert_ne!(generated, all(6));
    // What is hostile is mostly no request at all.
    let mut rng = Rng::new(1);
    let parsed = (0..1000).filter(|_| serde_json::from_slice::<Request>(&hostile(&mut rng, r#"{"op":"status"}"#.into())).is_ok());
    assert!(parsed.count() < 300);
}
