//! Redis servers under loads that fill the machine: whatever is answered is on other servers, and when the leading one is killed another leads at once.

use crate::common::{World, until, wait_for};
use crate::e2e_lab::redis::{Client, Servers, ask, server};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Clients, bytes of each value, values of one pipeline.
struct Load {
    clients: usize,
    size: usize,
    pipeline: usize,
}

const LOADS: [Load; 6] = [
    Load { clients: 1, size: 200_000, pipeline: 1 },
    Load { clients: 2, size: 500_000, pipeline: 1 },
    Load { clients: 10, size: 20_000, pipeline: 1 },
    Load { clients: 4, size: 10_000, pipeline: 1 },
    Load { clients: 2, size: 10_000, pipeline: 100 },
    Load { clients: 1, size: 3_000_000, pipeline: 4 },
];
/// How long each load goes on before its server is killed.
const LASTS: Duration = Duration::from_millis(1500);

/// Keys that were written and answered.
fn write(mut client: Client, load: &Load, name: &str, is_over: &AtomicBool, answered: &AtomicU64) -> Vec<String> {
    let value = "v".repeat(load.size);
    let mut keys = Vec::new();
    for round in 0.. {
        let keys_of_round: Vec<String> = (0..load.pipeline).map(|n| format!("{name}:{round}:{n}")).collect();
        for key in &keys_of_round {
            if client.say(&["SET", key, &value]).is_err() {
                return keys;
            }
        }
        for key in keys_of_round {
            match client.hear() {
                Ok(reply) if reply == "+OK" => keys.push(key),
                _ => return keys,
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    keys
}

#[test]
fn a_leader_that_is_killed_under_full_load_loses_nothing_and_another_leads() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    // `FIDE_LOAD_ROUNDS`: how often each load is tried.
    let rounds = std::env::var("FIDE_LOAD_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for (round, load) in (0..rounds).flat_map(|_| &LOADS).enumerate() {
        let leader = wait_for("a server leads", || of.leader());
        until("all are in sync", || of.status(leader).contains("copies :3"));
        let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let (mut in_sync, mut beside) = (Vec::new(), Vec::new());
        let began = Instant::now();
        let (keys, killed) = std::thread::scope(|scope| {
            let of = &mut of;
            let clients = (0..load.clients).map(|n| {
                let client = Client::open(&of.w, leader).unwrap();
                let (is_over, answered, name) = (&is_over, &answered, format!("{round}:{n}"));
                scope.spawn(move || write(client, load, &name, is_over, answered))
            });
            let clients: Vec<_> = clients.collect();
            while began.elapsed() < LASTS {
                beside.push(beside_its_data(&of.w, leader));
                in_sync.push(of.status(leader).split("copies :").nth(1).and_then(|n| n[..1].parse::<u32>().ok()).unwrap_or(0));
                // Sleep: interval of the samples.
                std::thread::sleep(Duration::from_millis(50));
            }
            of.kill(leader);
            let killed = Instant::now();
            is_over.store(true, Ordering::Relaxed);
            let keys: Vec<String> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            (keys, killed)
        });
        let next = wait_for("another leads", || {
            (1..=3).filter(|host| *host != leader).find(|host| ask(&of.w, *host, "SET probe 1") == "+OK")
        });
        let took = killed.elapsed();
        let mut client = Client::open(&of.w, next).unwrap();
        let size = format!(":{}", load.size);
        let lost = keys.iter().filter(|key| client.ask(&format!("STRLEN {key}")).unwrap() != size).count();
        let samples = in_sync.len();
        let all = in_sync.iter().filter(|copies| **copies == 3).count();
        println!(
            "{} clients × {} B × {}: {} answered ({:.1} MB/s), {lost} lost, all in sync in {all} of {samples} samples, {} MiB beside the data, another leads after {took:?}",
            load.clients,
            load.size,
            load.pipeline,
            keys.len(),
            (keys.len() * load.size) as f64 / 1e6 / LASTS.as_secs_f64(),
            beside.iter().max().unwrap() >> 20
        );
        assert_eq!(lost, 0);
        // Twice what is allowed: what allocators keep counts, too.
        let most = 2 * ((64 << 20) + 2 * load.size * load.pipeline) as u64;
        assert!(beside.iter().all(|bytes| *bytes < most), "{beside:?} bytes beside the data");
        client.ask("FLUSHALL").unwrap();
        of.servers[usize::from(leader) - 1] = Some(server(&of.w, leader, &[]));
        of.is_ready(leader);
    }
    of.agree();
}

/// Memory of a server beside its data and its clients' input, bytes.
fn beside_its_data(w: &World, host: u16) -> u64 {
    let info = ask(w, host, "INFO memory");
    let of = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    of("used_memory_rss").saturating_sub(of("used_memory_dataset") + of("mem_clients_normal"))
}

/// A server that loads for seconds while the leader's clients write: what is decided meanwhile waits for it, and one copy of the data is enough.
#[test]
fn a_server_that_loads_for_long_is_in_sync_behind_one_copy() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    let mut client = Client::open(&of.w, 1).unwrap();
    for n in 0..3000 {
        client.say(&["SET", &format!("key:{n}"), "v"]).unwrap();
    }
    (0..3000).for_each(|_| assert_eq!(client.hear().unwrap(), "+OK"));
    of.kill(2);
    // So many µs for each key.
    of.servers[1] = Some(server(&of.w, 2, &["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]));
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = Load { clients: 1, size: 50_000, pipeline: 4 };
    let writer = Client::open(&of.w, 1).unwrap();
    std::thread::scope(|scope| {
        let keys = scope.spawn(|| write(writer, &load, "while it loads", &is_over, &answered));
        let before = answered.load(Ordering::Relaxed);
        of.is_ready(2);
        until("it counts", || of.status(1).contains("copies :2"));
        let meanwhile = answered.load(Ordering::Relaxed) - before;
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(keys.join().unwrap().len() as u64, answered.load(Ordering::Relaxed));
        println!("{:.0} MB were written while it loaded", meanwhile as f64 * 50_000.0 / 1e6);
        assert!(meanwhile > 200, "writes go on: {meanwhile}");
    });
    of.agree();
    let copies = ask(&of.w, 1, "INFO stats").lines().find_map(|line| line.strip_prefix("sync_full:")?.trim().parse::<u32>().ok());
    assert_eq!(copies, Some(3), "the module's own at the begin, and one each time the other server started");
}

/// An agent that is restarted, or stands still for a moment: its server goes on with the data that it has.
#[test]
fn a_server_whose_agent_is_restarted_needs_no_copy_of_what_it_has() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let copies = |of: &Servers| {
        let info = ask(&of.w, 1, "INFO stats");
        info.lines().find_map(|line| line.strip_prefix("sync_full:")?.trim().parse::<u32>().ok()).unwrap()
    };
    let before = copies(&of);
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = Load { clients: 1, size: 1_000, pipeline: 1 };
    let writer = Client::open(&of.w, 1).unwrap();
    std::thread::scope(|scope| {
        let keys = scope.spawn(|| write(writer, &load, "meanwhile", &is_over, &answered));
        for host in [2, 3] {
            of.w.kill_agent(host);
            until("it does not count", || of.status(1).contains("copies :2"));
            of.w.start(host);
            until("it counts again", || of.status(1).contains("copies :3"));
        }
        is_over.store(true, Ordering::Relaxed);
        keys.join().unwrap();
    });
    of.agree();
    println!("{} copies of all data, {} writes", copies(&of) - before, answered.load(Ordering::Relaxed));
    assert_eq!(copies(&of), before);
}

/// Servers that stand still in turn, while leaders are killed: the log is full of what one of them has not read, and nothing comes to a standstill for good.
#[test]
fn servers_that_stand_still_while_leaders_change_hold_nobody_up_for_ever() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let load = Load { clients: 4, size: 60_000, pipeline: 4 };
    let mut all = Vec::new();
    for round in 0..2 {
        let leader = wait_for("a server leads", || of.leader());
        until("all are in sync", || of.status(leader).contains("copies :3"));
        let still = if leader == 3 { 2 } else { 3 };
        let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let keys: Vec<String> = std::thread::scope(|scope| {
            let clients = (0..load.clients).map(|n| {
                let client = Client::open(&of.w, leader).unwrap();
                let (is_over, answered, name) = (&is_over, &answered, format!("{round}:{n}"));
                let load = &load;
                scope.spawn(move || write(client, load, &name, is_over, answered))
            });
            let clients: Vec<_> = clients.collect();
            until("writes flow", || answered.load(Ordering::Relaxed) > 100);
            let stopped = of.servers[usize::from(still) - 1].as_ref().unwrap();
            stopped.signal(libc::SIGSTOP);
            // Sleep: so long that the log is full, and not so long that it leaves the set.
            std::thread::sleep(Duration::from_millis(1000));
            of.servers[usize::from(leader) - 1].as_ref().unwrap().kill();
            is_over.store(true, Ordering::Relaxed);
            let keys = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            // Sleep: another one leads meanwhile, whose entries are not read either.
            std::thread::sleep(Duration::from_millis(1000));
            stopped.signal(libc::SIGCONT);
            keys
        });
        all.extend(keys);
        let next = wait_for("another leads", || {
            (1..=3).filter(|host| *host != leader).find(|host| ask(&of.w, *host, "SET probe 1") == "+OK")
        });
        let mut client = Client::open(&of.w, next).unwrap();
        let size = format!(":{}", load.size);
        let lost = all.iter().filter(|key| client.ask(&format!("STRLEN {key}")).unwrap() != size).count();
        println!("round {round}: {} answered, {lost} lost", all.len());
        assert_eq!(lost, 0);
        of.servers[usize::from(leader) - 1] = Some(server(&of.w, leader, &[]));
        of.is_ready(leader);
        of.is_ready(still);
    }
    of.agree();
}

/// The server that takes over is busy for longer than a take-over may take, with decided writes that it has not applied: they are there when it leads.
#[test]
fn a_server_that_is_busy_when_it_takes_over_applies_everything_first() {
    let Some(of) = Servers::up(2, "huc") else { return };
    until("both are in sync", || of.status(1).contains("copies :2"));
    let load = Load { clients: 1, size: 20_000, pipeline: 1 };
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let writer = Client::open(&of.w, 1).unwrap();
    let mut sleeper = Client::open(&of.w, 2).unwrap();
    let keys = std::thread::scope(|scope| {
        let keys = scope.spawn(|| write(writer, &load, "k", &is_over, &answered));
        until("writes flow", || answered.load(Ordering::Relaxed) > 50);
        sleeper.say(&["DEBUG", "SLEEP", "12"]).unwrap();
        let before = answered.load(Ordering::Relaxed);
        until("some are not applied", || answered.load(Ordering::Relaxed) > before + 50);
        of.servers[0].as_ref().unwrap().kill();
        is_over.store(true, Ordering::Relaxed);
        keys.join().unwrap()
    });
    until("h2 leads", || {
        let Some(mut client) = Client::open(&of.w, 2) else { return false };
        client.ask("SET probe 1").is_ok_and(|reply| reply == "+OK")
    });
    let mut client = Client::open(&of.w, 2).unwrap();
    let lost = keys.iter().filter(|key| client.ask(&format!("STRLEN {key}")).unwrap() != ":20000").count();
    println!("{} answered, {lost} lost", keys.len());
    assert_eq!(lost, 0);
}
