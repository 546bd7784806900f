//! What clients of real Redis servers with the module see while servers and agents are killed and
//! stand still, judged by a checker of linearizability (Wing and Gong's algorithm with Lowe's
//! memory, as in Porcupine). `FIDE_HISTORY_SECONDS`: how long; 12 for each policy.

use super::redis::{Client, Servers, ask, available};
use super::witness::{REFUSES, SWITCHES_OFF};
use crate::common::{PATIENCE, until, wait_for};
use fide_lab::{Cut, Lab};
use fide_wire::control::{FenceOrder, GroupOrder, Reply, Request};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

const HOSTS: u16 = 3;
const CLIENTS: usize = 6;
/// Of each kind. What is done to one key is judged alone: objects are linearizable if each of them is.
const KEYS: usize = 3;
/// Between two commands of a client.
const PAUSE: Duration = Duration::from_millis(3);
/// So many commands that were answered are a history.
const ENOUGH: usize = 500;
/// Commands go on for so long before and behind a fault.
const AROUND: Duration = Duration::from_millis(250);

/// A command with what came back, to a list or to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// RPUSH: a value, and how long the list is then. No length: it was never answered, and happened or not.
    Append(u32, Option<usize>),
    /// LRANGE 0 -1
    All(Vec<u32>),
    /// SET
    Set(u32),
    /// GET
    Get(Option<u32>),
}

/// A Redis key: the values of a list, or the one of a text.
struct Key;

impl Specification for Key {
    type State = Vec<u32>;
    type Operation = What;

    fn init() -> Vec<u32> {
        Vec::new()
    }

    fn apply(what: &What, state: &Vec<u32>) -> (bool, Vec<u32>) {
        match what {
            What::Append(value, len) => {
                let new = [&state[..], &[*value]].concat();
                (len.is_none_or(|len| len == new.len()), new)
            }
            What::All(values) => (values == state, state.clone()),
            What::Set(value) => (true, vec![*value]),
            What::Get(value) => (*value == state.last().copied(), state.clone()),
        }
    }
}

/// What a client did.
#[derive(Clone, Debug)]
struct Done {
    key: String,
    called: Instant,
    /// None: it was never answered.
    returned: Option<Instant>,
    what: What,
}

/// A write that was never answered may take effect at any time, also behind everything else, as if it never had.
fn is_linearizable(done: &[Done]) -> bool {
    if done.is_empty() {
        return true;
    }
    let end = done.iter().map(|of| of.returned.unwrap_or(of.called)).max().expect("there are some");
    let mut moments: Vec<(Instant, bool, usize)> = Vec::new();
    for (at, of) in done.iter().enumerate() {
        moments.push((of.called, false, at));
        moments.push((of.returned.unwrap_or(end), true, at));
    }
    // Of equal moments calls come first: nothing is taken to be ordered that may not have been.
    moments.sort();
    let action = |(_, is_return, at): (Instant, bool, usize)| {
        let what = done[at].what.clone();
        (at, if is_return { Action::Response(what) } else { Action::Call(what) })
    };
    WGLChecker::<Key>::is_linearizable(History::from_actions(moments.into_iter().map(action).collect()))
}

/// Ends the clients of a round.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Commands of one client to whatever server takes them.
fn client(lab: &Lab, id: usize, round: u32, values: &AtomicU32, is_over: &AtomicBool) -> Vec<Done> {
    let mut done = Vec::new();
    let mut connection: Option<Client> = None;
    let mut host = 1;
    let mut turn = id;
    while !is_over.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Client::open_in(lab, host);
        }
        let Some(redis) = &mut connection else {
            host = host % HOSTS + 1;
            // Sleep: interval of the tries.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        turn = turn.wrapping_mul(5).wrapping_add(3);
        let (kind, key) = (turn >> 4 & 3, turn >> 8 & 15);
        let value = values.fetch_add(1, Ordering::Relaxed);
        let (key, command) = match kind {
            0 => (format!("list:{round}:{}", key % KEYS), "RPUSH"),
            1 => (format!("list:{round}:{}", key % KEYS), "LRANGE"),
            2 => (format!("text:{round}:{}", key % KEYS), "SET"),
            _ => (format!("text:{round}:{}", key % KEYS), "GET"),
        };
        let line = match command {
            "LRANGE" => format!("LRANGE {key} 0 -1"),
            "GET" => format!("GET {key}"),
            write => format!("{write} {key} {value}"),
        };
        let called = Instant::now();
        let reply = redis.ask(&line);
        let returned = Instant::now();
        let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("{line} is answered by {text}"));
        let what = match (command, &reply) {
            (_, Ok(error)) if error.starts_with('-') => {
                // It was refused before it was executed.
                let known = ["-READONLY", "-NOREPLICAS", "-TRYAGAIN", "-LOADING", "-MASTERDOWN"];
                assert!(known.iter().any(|known| error.starts_with(known)), "{line}: {error}");
                (connection, host) = (None, host % HOSTS + 1);
                // Sleep: interval of the tries.
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            ("RPUSH", Ok(len)) => What::Append(value, Some(number(&len[1..]) as usize)),
            ("RPUSH", Err(_)) => What::Append(value, None),
            ("SET", _) => What::Set(value),
            ("LRANGE", Ok(all)) => {
                What::All(all.trim_matches(['[', ']']).split(' ').filter(|text| !text.is_empty()).map(number).collect())
            }
            ("GET", Ok(text)) => What::Get((text != "nil").then(|| number(text))),
            // Nobody knows what it would have seen.
            _ => {
                (connection, host) = (None, host % HOSTS + 1);
                continue;
            }
        };
        if reply.is_err() {
            (connection, host) = (None, host % HOSTS + 1);
        }
        done.push(Done { key, called, returned: reply.is_ok().then_some(returned), what });
        // Sleep: the pause between two commands.
        std::thread::sleep(PAUSE);
    }
    done
}

/// A host of a group under the policy *fence* was shut out: an operator takes it back, and again if
/// its fence closes before the others have confirmed that it is heard, which they first have to be
/// told by an agent that has just started. On a full machine a host is given up for other reasons
/// than the fault, and hears that later than its fence is looked at: so until its server is in sync.
fn recover(of: &Servers, host: u16) {
    let mut asked: Option<Instant> = None;
    until(&format!("h{host} is not fenced any more, and its server has all that is decided"), || {
        let status = of.w.ask(host, &Request::Fence { order: FenceOrder::Status });
        let Ok(Reply::Fence(status)) = status else { return false };
        if status.state == "fenced" && asked.is_none_or(|at| at.elapsed() > Duration::from_millis(300)) {
            let _ = of.w.ask(host, &Request::Fence { order: FenceOrder::Recover });
            asked = Some(Instant::now());
        }
        status.state == "open" && status.extensions > 20 && of.is_in_sync(host)
    });
}

/// Agents that the witness has killed come back.
fn revive(of: &mut Servers) {
    for host in of.w.ended() {
        of.w.agent_ended(host);
        of.start_agent(host);
    }
}

/// A host is cut off until both others call it dead. Its own witness does not let it go on alone.
fn cut_off(of: &Servers, host: u16) {
    let own = |body| of.witnesses.iter().for_each(|witnesses| witnesses.set(host, body));
    own(REFUSES);
    (0..2).for_each(|path| of.w.lab.cut(host, path, Cut::Silent).unwrap());
    let others = || (1..=HOSTS).filter(|other| *other != host);
    until("both others call it dead", || others().all(|other| of.w.state(other, &format!("h{host}")) == "silent-host"));
    (0..2).for_each(|path| of.w.lab.heal(host, path).unwrap());
    own(SWITCHES_OFF);
}

/// Waits until some server does; says how all stand if none does.
fn takes_writes(of: &Servers) {
    let until = Instant::now() + PATIENCE;
    let takes = |host| {
        Client::open_in(&of.w.lab, host).is_some_and(|mut client| client.ask("SET probe 1").is_ok_and(|reply| reply == "+OK"))
    };
    while !(1..=HOSTS).any(takes) {
        assert!(Instant::now() < until, "no server takes writes: {:#?}", of.standings());
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The group goes on with another engine, while commands come in.
fn switch(of: &Servers, round: u32, policy: &str) -> String {
    let engines: &[&str] = if policy != "trust-contract" { &["hsuc", "huc"] } else { &["lowi", "raft", "hsuc", "huc"] };
    let engine = engines[round as usize % engines.len()];
    let order = GroupOrder::Switch { name: "orders".into(), engine: engine.into() };
    let told = of.w.ask(1, &Request::Group { order });
    // Sleep: commands come in while the engine changes.
    std::thread::sleep(AROUND);
    format!("the group shall go on with {engine}: {told:?}")
}

/// One fault, and its end. Returns what it was.
fn fault(of: &mut Servers, round: u32, policy: &str) -> String {
    let leader = wait_for("a server leads", || of.leader());
    let other = leader % HOSTS + 1;
    let what = match round % 8 {
        0 => {
            of.kill(leader);
            // Sleep: how long it is away.
            std::thread::sleep(AROUND);
            of.restart(leader);
            format!("h{leader}'s server is killed, which leads")
        }
        // Another one leads meanwhile: the one that wakes up does not know it.
        1 => {
            let stopped = of.servers[usize::from(leader) - 1].as_ref().unwrap();
            stopped.signal(libc::SIGSTOP);
            let told = ask(&of.w, other, "FIDE LEAD FORCE");
            // Sleep: the pause of the server.
            std::thread::sleep(AROUND);
            stopped.signal(libc::SIGCONT);
            format!("h{leader}'s server stands still, and h{other}'s shall lead: {told}")
        }
        2 => {
            of.w.kill_agent(leader);
            // Sleep: how long it is away.
            std::thread::sleep(AROUND);
            of.start_agent(leader);
            format!("the agent of h{leader} is killed, whose server leads")
        }
        3 => {
            of.w.lab.cut(leader, (round / 8 % 2) as u8, Cut::Silent).unwrap();
            // Sleep: how long the path is out.
            std::thread::sleep(AROUND);
            of.w.lab.heal(leader, (round / 8 % 2) as u8).unwrap();
            format!("a path of h{leader} loses everything, whose server leads")
        }
        4 => {
            of.w.signal_agent(leader, libc::SIGSTOP);
            // Sleep: the pause of the agent.
            std::thread::sleep(AROUND);
            of.w.signal_agent(leader, libc::SIGCONT);
            format!("the agent of h{leader} stands still, whose server leads")
        }
        5 => switch(of, round / 8, policy),
        6 => {
            of.kill(other);
            of.w.kill_agent(other);
            // Sleep: how long they are away.
            std::thread::sleep(AROUND);
            of.start_agent(other);
            of.restart(other);
            format!("server and agent of h{other} are killed, which follows")
        }
        // That there is no such cut is what trust-contract rests on.
        _ if policy == "trust-contract" => switch(of, round / 8 + 1, policy),
        _ => {
            cut_off(of, leader);
            format!("h{leader} is cut off, whose server leads")
        }
    };
    settle(of, policy);
    what
}

/// All that was shut out by the fault, or on a full machine beside it, is back.
fn settle(of: &mut Servers, policy: &str) {
    match policy {
        "fence" => (1..=HOSTS).for_each(|host| recover(of, host)),
        "witness" => until("all have what is decided", || {
            revive(of);
            (1..=HOSTS).all(|host| of.is_in_sync(host))
        }),
        _ => (1..=HOSTS).for_each(|host| of.is_ready(host)),
    }
}

#[test]
fn what_clients_see_is_linearizable_whatever_is_killed_or_stands_still() {
    are_linearizable("trust-contract", 5);
}

#[test]
fn what_clients_see_behind_fences_is_linearizable_also_when_hosts_are_cut_off() {
    are_linearizable("fence", 8);
}

#[test]
fn what_clients_see_beside_a_witness_is_linearizable_also_when_hosts_are_cut_off() {
    are_linearizable("witness", 8);
}

/// Histories under a policy, with so many faults at least.
fn are_linearizable(policy: &str, least: u32) {
    if !available() {
        return;
    }
    // Behind fences a leader reads by a lease unless it is told otherwise; with a contract alone it is told to.
    let of_the_module: &[&str] = if policy == "trust-contract" { &["reads", "lease"] } else { &[] };
    let Some(mut of) = Servers::up_as(HOSTS, "huc", policy, &[], of_the_module) else { return };
    let seconds = std::env::var("FIDE_HISTORY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let until_end = Instant::now() + Duration::from_secs(seconds);
    let lab = Lab::open(of.w.lab.name()).unwrap();
    let values = AtomicU32::new(1);
    let (mut round, mut answered, mut unanswered) = (0, 0, 0);
    // On a busy machine fewer commands come in: then it takes longer, up to a bound.
    while round < least || Instant::now() < until_end || (answered <= ENOUGH && Instant::now() < until_end + PATIENCE) {
        let is_over = AtomicBool::new(false);
        let (what, mut done) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|id| {
                    scope.spawn({
                        let (lab, values, is_over) = (&lab, &values, &is_over);
                        move || client(lab, id, round, values, is_over)
                    })
                })
                .collect();
            // Also where something is waited for in vain.
            let ends = Over(&is_over);
            // Sleep: commands come in before the fault.
            std::thread::sleep(AROUND);
            let what = fault(&mut of, round, policy);
            let leads = Instant::now();
            takes_writes(&of);
            // Sleep: commands come in after it.
            std::thread::sleep(AROUND);
            drop(ends);
            let done: Vec<Done> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            (format!("{what}; a server takes writes {:?} after its end", leads.elapsed() - AROUND), done)
        });
        settle(&mut of, policy);
        done.sort_by_key(|of| of.called);
        let open = done.iter().filter(|of| of.returned.is_none()).count();
        println!("round {round}: {what}; {} commands, {open} without an answer", done.len());
        (answered, unanswered) = (answered + done.len() - open, unanswered + open);
        let mut keys: Vec<String> = done.iter().map(|of| of.key.clone()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let of_key: Vec<Done> = done.iter().filter(|of| of.key == key).cloned().collect();
            assert!(is_linearizable(&of_key), "{what}: what was done to {key} is not linearizable: {of_key:#?}");
        }
        round += 1;
    }
    of.agree();
    println!("{round} faults, {answered} commands answered, {unanswered} not: linearizable");
    assert!(answered > ENOUGH, "{answered} commands are no history");
}

/// The judge finds what must not be.
#[test]
fn histories_that_are_not_linearizable_are_refused() {
    let begin = Instant::now();
    let at = |ms: u64| begin + Duration::from_millis(ms);
    let done = |from, to: u64, what: What| Done { key: "k".into(), called: at(from), returned: (to > 0).then(|| at(to)), what };
    let append = |from, to, value, len| done(from, to, What::Append(value, len));
    let all = |from, to, values: &[u32]| done(from, to, What::All(values.into()));
    // At the same time, in any order; and a write without an answer that took effect late, or never.
    assert!(is_linearizable(&[append(0, 9, 1, Some(2)), append(1, 8, 2, Some(1)), all(10, 11, &[2, 1])]));
    assert!(is_linearizable(&[append(0, 0, 1, None), all(1, 2, &[]), all(3, 4, &[1])]));
    assert!(is_linearizable(&[append(0, 0, 1, None), all(1, 2, &[]), append(3, 4, 2, Some(1))]));
    for (what, wrong) in [
        ("an answered write is lost", vec![append(0, 1, 1, Some(1)), all(2, 3, &[])]),
        ("a write is there twice", vec![append(0, 1, 1, Some(1)), all(2, 3, &[1, 1])]),
        ("a read is stale", vec![append(0, 1, 1, Some(1)), append(2, 3, 2, Some(2)), all(4, 5, &[1])]),
        ("an undecided write was read, and lost", vec![append(0, 0, 1, None), all(1, 2, &[1]), all(3, 4, &[])]),
        ("the order changed", vec![append(0, 1, 1, Some(1)), append(2, 3, 2, Some(2)), all(4, 5, &[2, 1])]),
        ("a text goes back", vec![done(0, 1, What::Set(1)), done(2, 3, What::Set(2)), done(4, 5, What::Get(Some(1)))]),
    ] {
        assert!(!is_linearizable(&wrong), "{what}");
    }
}
