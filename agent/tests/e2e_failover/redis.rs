//! `fide-failover` over real Redis servers: one leads, another one takes over when it crashes, and never two take writes.

use crate::common::{Process, Setup, World, until};
use crate::e2e_failover::program;
use fide_client::group::{Group, Options};
use fide_wire::control::{MaintenanceOrder, Request};
use fide_wire::verdict::Cause;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PORT: u16 = 6379;

fn available() -> bool {
    let there = Command::new("redis-server").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        println!("SKIPPED: there is no redis-server: apt-get install redis-server");
    }
    there
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn open(w: &World, host: u16, to: &str) -> Option<Self> {
        Self::open_in(&w.lab, host, to)
    }

    fn open_in(lab: &fide_lab::Lab, host: u16, to: &str) -> Option<Self> {
        let stream = lab
            .in_host(host, || TcpStream::connect_timeout(&format!("{to}:{PORT}").parse().unwrap(), Duration::from_millis(500)));
        let stream = stream.unwrap().ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.set_nodelay(true).unwrap();
        Some(Self(BufReader::new(stream)))
    }

    /// The first line of the reply, or what a bulk reply says.
    fn ask(&mut self, words: &str) -> std::io::Result<String> {
        self.0.get_mut().write_all(format!("{words}\r\n").as_bytes())?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().strip_prefix('$').map(|count| count.parse::<i64>().unwrap()) {
            Some(count) if count >= 0 => {
                let mut bytes = vec![0; count as usize + 2];
                self.0.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..count as usize]).into_owned())
            }
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

struct Managed {
    w: World,
    servers: Vec<Option<Process>>,
    managers: Vec<Option<Process>>,
    more: String,
    hosts: u16,
}

impl Managed {
    /// A server and a manager on each host; the first one leads.
    fn up(hosts: u16, more: &str, setup: impl FnOnce(Setup) -> Setup) -> Option<Self> {
        if !available() {
            return None;
        }
        let w = setup(Setup::hosts(hosts)).up()?;
        w.all_alive();
        let mut of = Self { w, servers: Vec::new(), managers: Vec::new(), more: more.into(), hosts };
        for host in 1..=hosts {
            of.servers.push(Some(of.server(host)));
        }
        for host in 1..=hosts {
            until("the server answers", || of.ask(host, "PING") == "+PONG");
        }
        for host in 1..=hosts {
            of.managers.push(Some(of.manager(host)));
        }
        until("one leads and all others follow", || {
            of.ask(1, "SET begun 1") == "+OK" && (2..=hosts).all(|host| of.ask(host, "GET begun") == "1")
        });
        Some(of)
    }

    fn server(&self, host: u16) -> Process {
        let dir = self.w.lab.host_dir(host).join("redis");
        fs::create_dir_all(&dir).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
        let conf = dir.join("redis.conf");
        if !conf.exists() {
            let text =
                format!("port {PORT}\nbind 0.0.0.0\nprotected-mode no\nsave \"\"\nappendonly yes\nrepl-diskless-sync-delay 0\n");
            crate::e2e_failover::configure(&conf, &text);
        }
        let mut command = self.w.lab.command(host, "redis-server").unwrap();
        command.current_dir(&dir).arg(&conf).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Process::spawn(command)
    }

    fn command(&self, host: u16) -> Command {
        let dir = self.w.lab.host_dir(host);
        let conf = dir.join("failover.toml");
        let hosts: Vec<String> = (1..=self.hosts).map(|host| format!("\"h{host}\"")).collect();
        let text = format!(
            "name = \"orders\"\nhosts = [{}]\nstate = {:?}\n{}\n[redis]\nport = {PORT}\n",
            hosts.join(", "),
            dir.join("failover"),
            self.more
        );
        crate::e2e_failover::configure(&conf, &text);
        let mut command = self.w.lab.command(host, program().to_str().unwrap()).unwrap();
        command.arg("--config").arg(conf).arg("--socket").arg(self.w.socket(host)).stdin(Stdio::null());
        command
    }

    fn manager(&self, host: u16) -> Process {
        let log = self.w.lab.host_dir(host).join("failover.log");
        let log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = self.command(host);
        command.arg("run").stdout(log.try_clone().unwrap()).stderr(log);
        Process::spawn(command)
    }

    fn log(&self, host: u16) -> String {
        fs::read_to_string(self.w.lab.host_dir(host).join("failover.log")).unwrap_or_default()
    }

    /// What an operator is told.
    fn say(&self, host: u16, words: &[&str]) -> (bool, String) {
        let out = self.command(host).args(words).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    }

    fn ask(&self, host: u16, words: &str) -> String {
        Client::open(&self.w, host, "127.0.0.1").and_then(|mut client| client.ask(words).ok()).unwrap_or_default()
    }

    fn takes_writes(&self, host: u16) -> bool {
        self.ask(host, "SET probe 1") == "+OK"
    }

    fn kill_server(&mut self, host: u16) {
        self.servers[usize::from(host) - 1].take().unwrap().kill();
    }

    /// As its service does.
    fn stop_server(&mut self, host: u16) {
        _ = self.ask(host, "SHUTDOWN");
        self.servers[usize::from(host) - 1].take().unwrap().ended();
    }

    fn start_server(&mut self, host: u16) {
        self.servers[usize::from(host) - 1] = Some(self.server(host));
    }

    fn follows(&self, host: u16, leader: u16) -> bool {
        let info = self.ask(host, "INFO replication");
        info.contains(&format!("master_host:{}", self.w.lab.ipv4(leader, 0))) && info.contains("master_link_status:up")
    }
}

/// Managers look at their servers ten times a second: by then they know what these have become.
const LOOKED: Duration = Duration::from_millis(500);

#[test]
fn another_server_takes_over_when_the_leader_is_killed_and_the_former_one_follows() {
    let Some(mut of) = Managed::up(3, "", |setup| setup) else { return };
    assert!(of.takes_writes(1) && !of.takes_writes(2) && !of.takes_writes(3));
    let mut leader = 1;
    for _ in 0..3 {
        // Any of the others may be the next one: two of them are equally good.
        let killed = leader;
        assert_eq!(of.ask(killed, &format!("SET killed {killed}")), "+OK");
        until("all others have it", || (1..=3).filter(|h| *h != killed).all(|h| of.ask(h, "GET killed") == killed.to_string()));
        // Sleep: time for the managers to look at their servers.
        std::thread::sleep(LOOKED);
        let since = Instant::now();
        of.kill_server(killed);
        until("another one takes writes", || (1..=3).any(|host| host != killed && of.takes_writes(host)));
        println!("another server took writes {:?} behind the kill", since.elapsed());
        leader = (1..=3).find(|host| *host != killed && of.takes_writes(*host)).unwrap();
        assert_eq!(of.ask(leader, "GET killed"), killed.to_string());
        // A server that starts takes no writes before it is told to.
        of.start_server(killed);
        until("the former leader answers", || {
            let reply = of.ask(killed, "SET probe 2");
            assert_ne!(reply, "+OK", "two take writes");
            reply.starts_with("-READONLY")
        });
        until("it follows", || of.follows(killed, leader));
        let (ok, status) = of.say(3, &["status"]);
        assert!(ok && status.contains(&format!("h{leader} leads")), "{status}");
        let (ok, told) = of.say(2, &["history"]);
        assert!(ok && told.contains(&format!("orders@h{killed}: ")) && told.contains("certain"), "{told}");
    }
}

/// Writes numbers to whoever takes them, and remembers those that were acknowledged.
fn write_on(of: &Managed, from: u16, numbers: std::ops::Range<u32>) -> (Vec<u32>, Duration) {
    let addresses: Vec<String> = (1..=of.hosts).map(|host| of.w.lab.ipv4(host, 0).to_string()).collect();
    let (mut acknowledged, mut longest, mut at, mut last) = (Vec::new(), Duration::ZERO, 0, Instant::now());
    let mut client = None;
    for number in numbers {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            assert!(Instant::now() < until, "nobody takes writes");
            if client.is_none() {
                at = (at + 1) % addresses.len();
                client = Client::open(&of.w, from, &addresses[at]);
            }
            let reply = client.as_mut().and_then(|client: &mut Client| client.ask(&format!("SADD numbers {number}")).ok());
            if reply.as_deref() == Some(":1") {
                break;
            }
            client = None;
        }
        longest = longest.max(last.elapsed());
        last = Instant::now();
        acknowledged.push(number);
    }
    (acknowledged, longest)
}

#[test]
fn leadership_is_handed_over_while_clients_write_and_no_write_is_lost() {
    let Some(of) = Managed::up(3, "", |setup| setup) else { return };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut all = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let first = all.len() as u32;
                all.extend(write_on(&of, 3, first..first + 50).0);
            }
            all
        });
        // Also where something fails.
        struct Stops<'a>(&'a std::sync::atomic::AtomicBool);
        impl Drop for Stops<'_> {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let stops = Stops(&stop);
        for to in [2, 3, 1, 2] {
            let (ok, told) = of.say(1, &["switch", &format!("h{to}")]);
            assert!(ok && told.contains(&format!("h{to} leads")) && told.contains("nothing is lost"), "{told}");
            until("all others follow it", || (1..=3).all(|host| host == to || of.follows(host, to)));
        }
        drop(stops);
        writer.join().unwrap()
    });
    assert_eq!(of.ask(2, "SCARD numbers"), format!(":{}", acknowledged.len()));
    let (ok, told) = of.say(1, &["switch", "h9"]);
    assert!(!ok && told.contains("h9 takes no part"), "{told}");
}

#[test]
fn in_a_pause_a_leader_that_is_restarted_leads_again_and_behind_it_another_one_does() {
    let Some(mut of) = Managed::up(2, "", |setup| setup) else { return };
    assert_eq!(of.ask(1, "SET kept 1"), "+OK");
    assert!(of.say(2, &["pause", "--why", "kernel"]).0);
    let (_, status) = of.say(1, &["status"]);
    assert!(status.contains("paused until") && status.contains("kernel"), "{status}");
    of.kill_server(1);
    until("its end is known", || of.say(2, &["status", "--json"]).1.contains("\"server\":\"ended\""));
    assert!(!of.takes_writes(2));
    of.start_server(1);
    until("it leads again", || of.takes_writes(1));
    assert_eq!(of.ask(1, "GET kept"), "1", "of its own file");
    assert!(!of.takes_writes(2));
    until("the other one follows again", || of.follows(2, 1));
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED);
    // It ends again, and the pause some time after: the one that had followed to the end leads.
    of.kill_server(1);
    // Sleep: time in which nobody may take over while the group is paused.
    std::thread::sleep(Duration::from_secs(3));
    assert!(!of.takes_writes(2) && of.say(1, &["resume"]).0);
    until("the other one leads", || of.takes_writes(2));
    // A pause that ends by itself.
    assert!(of.say(1, &["pause", "--for", "2s"]).0);
    until("it is over", || !of.say(1, &["status"]).1.contains("paused"));
    assert!(!of.say(1, &["resume"]).0, "it is not paused any more");
}

#[test]
fn a_leader_that_is_restarted_cleanly_leads_again_and_one_that_stays_away_is_replaced() {
    let Some(mut of) = Managed::up(2, "planned = \"wait 3s\"", |setup| setup) else { return };
    assert_eq!(of.ask(1, "SET kept 1"), "+OK");
    of.stop_server(1);
    // Sleep: time for the managers to see what has changed.
    std::thread::sleep(Duration::from_millis(500));
    assert!(!of.takes_writes(2), "a restart is no crash");
    of.start_server(1);
    until("it leads again", || of.takes_writes(1));
    assert_eq!(of.ask(1, "GET kept"), "1");
    assert!(!of.takes_writes(2));
    until("the other one follows again", || of.follows(2, 1));
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED);
    // It is stopped for longer than that.
    let since = Instant::now();
    of.stop_server(1);
    until("the other one leads", || of.takes_writes(2));
    assert!(since.elapsed() >= Duration::from_secs(3), "after {:?}", since.elapsed());
    assert_eq!(of.ask(2, "GET kept"), "1");
    of.start_server(1);
    until("the former one follows", || of.follows(1, 2));
    // What keeps nothing is not waited for.
    assert_eq!(of.ask(2, "CONFIG SET appendonly no"), "+OK");
    // Sleep: time for the managers to see what has changed.
    std::thread::sleep(Duration::from_millis(500));
    of.stop_server(2);
    until("the other one leads", || of.takes_writes(1));
    let (ok, told) = of.say(1, &["history"]);
    assert!(ok && told.contains("h2 cannot lead: its server was stopped and keeps nothing on disk"), "{told}");
    assert_eq!(of.ask(1, "GET kept"), "1");
    // Nobody is there who would tell that server to lead: leadership stays.
    of.start_server(2);
    until("it follows", || of.follows(2, 1));
    of.managers[1].take().unwrap().kill();
    until("that is known", || of.say(1, &["status"]).1.contains("missing"));
    let (ok, told) = of.say(1, &["switch", "h2"]);
    assert!(!ok && told.contains("does not run on h2"), "{told}");
    assert!(of.takes_writes(1));
}

#[test]
fn a_crash_in_maintenance_is_planned_and_one_behind_it_is_not() {
    let Some(mut of) = Managed::up(2, "planned = \"wait 5s\"", |setup| setup) else { return };
    assert_eq!(of.ask(1, "SET kept 1"), "+OK");
    let (target, reason) = ("orders".into(), String::new());
    let order = MaintenanceOrder::On { target, for_ns: 600_000_000_000, reason };
    of.w.ask(2, &Request::Maintenance { order }).unwrap();
    until("both hosts know", || (1..=2).all(|host| of.w.status(host).maintenance.iter().any(|m| m.known_by.len() == 2)));
    of.kill_server(1);
    let said = "orders@h1: killed 9";
    until("both managers say what they make of it", || {
        (1..=2)
            .all(|h| of.log(h).lines().any(|l| l.contains(said) && l.contains("in maintenance of orders: its end was planned")))
    });
    assert!(!of.takes_writes(2), "it was planned");
    of.start_server(1);
    until("it leads again", || of.takes_writes(1));
    assert_eq!(of.ask(1, "GET kept"), "1");
    until("the other one follows again", || of.follows(2, 1));
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED);
    of.w.ask(1, &Request::Maintenance { order: MaintenanceOrder::Off { target: None } }).unwrap();
    until("it is over on both", || (1..=2).all(|host| of.w.status(host).maintenance.is_empty()));
    of.kill_server(1);
    until("another one leads", || of.takes_writes(2));
    let (ok, told) = of.say(2, &["history"]);
    let last = told.lines().rfind(|line| line.contains("orders@h1")).unwrap_or_default();
    assert!(ok && last.contains("certain") && !last.contains("maintenance"), "{told}");
}

#[test]
fn managers_and_agents_that_are_restarted_change_nothing_and_miss_nothing() {
    let Some(mut of) = Managed::up(3, "", |setup| setup) else { return };
    // The leader's manager dies: its server leads on, and comes back to it.
    of.managers[0].take().unwrap().kill();
    assert!(of.takes_writes(1));
    of.managers[0] = Some(of.manager(1));
    until("it is managed again", || of.say(2, &["status"]).1.matches("runs").count() == 3);
    assert!(of.takes_writes(1));
    // The agent of the leader's host is killed, and its server while nobody watches.
    of.w.kill_agent(1);
    of.kill_server(1);
    of.w.start(1);
    // On a busy machine an agent takes seconds to start: followers whose link was down for longer
    // than two may have missed writes.
    let has_missed = |of: &Managed| of.say(2, &["status"]).1.matches("has not followed the last leader to the end").count() == 2;
    until("another one leads, or none may", || of.takes_writes(2) || of.takes_writes(3) || has_missed(&of));
    if has_missed(&of) {
        of.start_server(1);
        return until("the former one leads again", || of.takes_writes(1));
    }
    assert!(!(of.takes_writes(2) && of.takes_writes(3)));
    let leader = if of.takes_writes(2) { 2 } else { 3 };
    of.start_server(1);
    until("the former one follows", || of.follows(1, leader));
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED);
    // The manager of a follower dies, then the leader's server: the others go on without it.
    let other = 5 - leader;
    of.managers[usize::from(other) - 1].take().unwrap().kill();
    of.kill_server(leader);
    until("the one with a manager leads", || of.takes_writes(1));
    of.start_server(leader);
    until("it follows", || of.follows(leader, 1));
}

/// The group lives in the agents' memory: when all of them end at once it begins anew, and the last leader's server leads.
#[test]
fn agents_of_all_hosts_are_restarted_at_once_and_another_server_takes_over_behind_that() {
    let Some(mut of) = Managed::up(2, "", |setup| setup) else { return };
    assert!(of.takes_writes(1));
    [1, 2].into_iter().for_each(|host| of.w.kill_agent(host));
    [1, 2].into_iter().for_each(|host| of.w.start(host));
    until("the group has begun anew", || of.say(2, &["status"]).1.contains("h1 leads"));
    until("one leads and the other one follows", || of.takes_writes(1) && of.follows(2, 1));
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED);
    of.kill_server(1);
    until("the other one takes over", || of.takes_writes(2));
}

#[test]
fn a_silent_host_is_replaced_only_if_its_fence_has_closed() {
    for fenced in [true, false] {
        let Some(pins) = crate::e2e_failover::fence::Pins::new() else { return };
        let lines = move |host: u16| {
            if fenced { pins.config(host, "mode = \"acknowledged\"\ntimeout = \"2s\"\n") } else { String::new() }
        };
        let Some(mut of) = Managed::up(3, "", |setup| setup.extra(lines)) else { return };
        if fenced {
            until("fences are promised", || (2..=3).all(|host| of.w.view(host, "h1").is_some_and(|h| h.fence.is_some())));
        }
        fide_lab::NETS.into_iter().for_each(|net| of.w.lab.cut(1, net, fide_lab::Cut::Silent).unwrap());
        of.w.event(2, "h1 is silent", |event| event.cause == Cause::SilentHost && event.node == "h1");
        if fenced {
            until("another one leads", || of.takes_writes(2) || of.takes_writes(3));
            until("the former one takes no writes, where nobody sees it", || of.ask(1, "SET probe 3").starts_with("-READONLY"));
        } else {
            until("it is said why nobody does", || of.log(2).contains("no fence"));
            assert!(of.takes_writes(1) && !of.takes_writes(2) && !of.takes_writes(3));
        }
        fide_lab::NETS.into_iter().for_each(|net| of.w.lab.heal(1, net).unwrap());
        let leader = if !fenced {
            1
        } else if of.takes_writes(2) {
            2
        } else {
            3
        };
        if fenced {
            crate::e2e_failover::fence::fence(&of.w, 1, fide_wire::control::FenceOrder::Recover);
        }
        until("all follow one", || (1..=3).all(|host| host == leader || of.follows(host, leader)));
        assert!((1..=3).all(|host| (host == leader) == of.takes_writes(host)));
        // Sleep: time for the managers to look at their servers.
        std::thread::sleep(LOOKED);
        of.kill_server(leader);
        until("another one takes over", || (1..=3).any(|host| host != leader && of.takes_writes(host)));
    }
}

/// Verdicts that were inferred are numbered anew by every life of an agent; and the managers learn
/// of the silence by asking.
#[test]
fn managers_that_come_back_behind_a_silence_take_over() {
    let Some(pins) = crate::e2e_failover::fence::Pins::new().map(std::rc::Rc::new) else { return };
    // They outlive the agents, which are started again.
    let kept = pins.clone();
    let lines = move |host: u16| kept.config(host, "mode = \"acknowledged\"\ntimeout = \"2s\"\n");
    let Some(mut of) = Managed::up(3, "", |setup| setup.extra(lines)) else { return };
    let promised = |of: &Managed| (2..=3).all(|host| of.w.view(host, "h1").is_some_and(|h| h.fence.is_some()));
    until("fences are promised", || promised(&of));
    for host in 2..=3 {
        of.w.kill_agent(host);
        of.w.start(host);
        // On a busy machine it is back only when its fence has closed.
        if of.w.status(host).fence.is_some_and(|fence| fence.state == "fenced") {
            crate::e2e_failover::fence::fence(&of.w, host, fide_wire::control::FenceOrder::Recover);
        }
        of.w.all_alive();
        let runs = |(ok, told): (bool, String)| ok && told.matches("runs").count() == 3;
        until("its group and its manager are there again", || runs(of.say(host, &["status"])) && runs(of.say(1, &["status"])));
    }
    until("fences are promised again", || promised(&of));
    let cut = |of: &Managed| fide_lab::NETS.into_iter().for_each(|net| of.w.lab.cut(1, net, fide_lab::Cut::Silent).unwrap());
    let is_silent = |of: &Managed| (2..=3).all(|host| of.w.view(host, "h1").is_some_and(|h| h.state == "silent-host"));
    (2..=3).for_each(|host| of.managers[host - 1].take().unwrap().kill());
    cut(&of);
    until("the leader's host is silent", || is_silent(&of));
    (2..=3).for_each(|host| of.managers[usize::from(host) - 1] = Some(of.manager(host)));
    until("another one leads", || of.takes_writes(2) || of.takes_writes(3));
    until("the former one takes no writes", || of.ask(1, "SET probe 3").starts_with("-READONLY"));
}

/// Its manager is not there to close the server, and the next leader takes writes already.
#[test]
fn a_fence_is_not_opened_before_somebody_has_closed_the_server_behind_it() {
    let Some(pins) = crate::e2e_failover::fence::Pins::new() else { return };
    let lines = move |host: u16| pins.config(host, "mode = \"acknowledged\"\ntimeout = \"2s\"\n");
    let Some(mut of) = Managed::up(3, "", |setup| setup.extra(lines)) else { return };
    until("fences are promised", || (2..=3).all(|host| of.w.view(host, "h1").is_some_and(|h| h.fence.is_some())));
    of.managers[0].take().unwrap().kill();
    fide_lab::NETS.into_iter().for_each(|net| of.w.lab.cut(1, net, fide_lab::Cut::Silent).unwrap());
    until("another one leads", || of.takes_writes(2) || of.takes_writes(3));
    assert!(of.takes_writes(1), "nobody told it, and nobody hears it");
    fide_lab::NETS.into_iter().for_each(|net| of.w.lab.heal(1, net).unwrap());
    let recover = || {
        let mut fide = of.w.lab.command(1, crate::e2e_failover::beside("fide").to_str().unwrap()).unwrap();
        let out = fide.args(["fence", "recover", "--socket"]).arg(of.w.socket(1)).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (ok, told) = recover();
    assert!(!ok && told.contains("orders") && told.contains("fide-failover") && told.contains("--force"), "{told}");
    let is_fenced = |of: &Managed| of.w.status(1).fence.is_some_and(|fence| fence.state == "fenced");
    assert!(is_fenced(&of));
    let manager = of.manager(1);
    until("the fence opens behind the manager", || recover().0);
    of.managers[0] = Some(manager);
    let leader = if of.takes_writes(2) { 2 } else { 3 };
    assert!(!of.takes_writes(1));
    until("the former leader follows", || of.follows(1, leader));
    let of_manager = |e: &fide_wire::control::HistoryEvent| e.node == "h1" && e.app.as_deref() == Some("failover-orders");
    let ended = |cause: Cause| matches!(cause, Cause::Killed | Cause::Exited | Cause::Left);
    let ends: Vec<_> = of.w.history(1).into_iter().filter(|e| of_manager(e) && ended(e.cause)).map(|e| e.text).collect();
    assert_eq!(ends.len(), 1, "the manager that came back has not ended: {ends:?}");
}

#[test]
fn a_server_that_lacks_more_than_it_may_does_not_take_over() {
    let Some(mut of) = Managed::up(2, "lag_max = \"64KiB\"", |setup| setup) else { return };
    let value = "x".repeat(30_000);
    let write = |of: &Managed, count: u32| {
        let mut client = Client::open(&of.w, 1, "127.0.0.1").unwrap();
        (0..count).for_each(|n| assert_eq!(client.ask(&format!("SET key-{n} {value}")).unwrap(), "+OK"));
    };
    write(&of, 10);
    until("the other one has them", || of.ask(2, "DBSIZE") == of.ask(1, "DBSIZE"));
    // More than sockets hold.
    of.servers[1].as_ref().unwrap().signal(libc::SIGSTOP);
    write(&of, 1_500);
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED); // the leader's manager has seen them, and said so
    of.kill_server(1);
    of.servers[1].as_ref().unwrap().signal(libc::SIGCONT);
    until("it is said why nobody takes over", || of.say(2, &["status"]).1.contains("of what the last leader had"));
    assert!(!of.takes_writes(2));
    of.start_server(1);
    until("the leader leads again", || of.takes_writes(1) && of.follows(2, 1));
    until("the other one has all", || of.ask(2, "DBSIZE") == of.ask(1, "DBSIZE"));
    // Sleep: time for the managers to look at their servers.
    std::thread::sleep(LOOKED);
    of.kill_server(1);
    until("it takes over", || of.takes_writes(2));
}

#[test]
fn an_address_moves_with_the_leader() {
    let more = "[address]\nip = \"10.77.0.200/24\"\ninterface = \"net0\"\n";
    let Some(mut of) = Managed::up(3, more, |setup| setup) else { return };
    let vip = {
        // Of the same network as the hosts.
        let [a, b, c, _] = of.w.lab.ipv4(1, 0).octets();
        format!("{a}.{b}.{c}.200")
    };
    let reached = |of: &Managed, host: u16| {
        let mut client = Client::open(&of.w, host, &vip)?;
        client.ask("SET through-address 1").ok().filter(|reply| reply == "+OK")
    };
    until("the leader is reached by it", || reached(&of, 3).is_some());
    // A client that connects again and again is refused while nobody leads; nobody lets it wait.
    let lab = fide_lab::Lab::open(of.w.lab.name()).unwrap();
    let (stop, lost) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let to = format!("{vip}:6379").parse().unwrap();
            let connect = || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(900));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                if lab.in_host(3, connect).unwrap().is_err_and(|e| e.kind() == std::io::ErrorKind::TimedOut) {
                    lost.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                // Sleep: interval between two attempts to connect.
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        of.kill_server(1);
        until("its successor is reached by it", || reached(&of, 3).is_some() && reached(&of, 2).is_some());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(lost.into_inner(), 0, "attempts of a client that nobody answered");
    of.start_server(1);
    let has = |of: &Managed, host: u16| {
        let out = of.w.lab.command(host, "ip").unwrap().args(["-4", "address", "show"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).contains(&vip)
    };
    until("one host has it", || (1..=3).filter(|host| has(&of, *host)).count() == 1);
    assert!(!has(&of, 1));
}

/// Which servers took writes of a client on another host, in the order in which these were sent.
struct Watch {
    lab: fide_lab::Lab,
    stop: std::sync::atomic::AtomicBool,
    taken: std::sync::Mutex<Vec<(Instant, u16)>>,
}

impl Watch {
    fn write_to(&self, from: u16, host: u16) {
        let address = self.lab.ipv4(host, 0).to_string();
        let mut client = None;
        while !self.stop.load(std::sync::atomic::Ordering::Relaxed) {
            // Sleep: interval between two writes.
            std::thread::sleep(Duration::from_millis(2));
            if client.is_none() {
                client = Client::open_in(&self.lab, from, &address);
            }
            let sent = Instant::now();
            match client.as_mut().map(|client: &mut Client| client.ask("SET written 1")) {
                Some(Ok(reply)) if reply == "+OK" => self.taken.lock().unwrap().push((sent, host)),
                // Sleep: pause before a refused write is tried again.
                Some(Ok(_)) | None => std::thread::sleep(Duration::from_millis(5)),
                Some(Err(_)) => client = None,
            }
        }
    }

    /// Each server that took writes behind another one did so, once.
    fn course(&self) -> Vec<u16> {
        let mut taken = self.taken.lock().unwrap();
        taken.sort();
        taken.dedup_by_key(|(_, host)| *host);
        taken.iter().map(|(_, host)| *host).collect()
    }
}

/// `FIDE_FAILOVER_FAULTS` says how many.
#[test]
fn faults_promote_nobody_who_should_not_be_and_never_two_take_writes() {
    const FROM: u16 = 4;
    let faults: u64 = std::env::var("FIDE_FAILOVER_FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(12);
    let Some(pins) = crate::e2e_failover::fence::Pins::new().map(std::rc::Rc::new) else { return };
    // They outlive the agents, which are started again.
    let kept = pins.clone();
    let lines = move |host: u16| kept.config(host, "mode = \"acknowledged\"\ntimeout = \"5s\"\n");
    let Some(of) = Managed::up(3, "", |_| Setup::hosts(4).extra(lines)) else { return };
    let of = std::cell::RefCell::new(of);
    until("fences are promised", || {
        (1..=3).all(|host| of.borrow().w.view(FROM, &format!("h{host}")).is_some_and(|h| h.fence.is_some()))
    });
    let fenced = |host: u16| of.borrow().w.status(host).fence.is_some_and(|fence| fence.state == "fenced");
    let leaders = |seen: &mut std::collections::BTreeMap<u64, u16>| {
        for host in 1..=3 {
            let (ok, told) = of.borrow().say(host, &["history", "--json"]);
            for line in told.lines().filter(|_| ok) {
                let (Some((_, term)), Some((_, text))) = (line.split_once("\"term\":"), line.split_once("\"text\":\"")) else {
                    continue;
                };
                let term: u64 = term.split([',', '}']).next().unwrap().parse().unwrap();
                if let Some(host) = text.strip_prefix('h').and_then(|text| text.split_once(" leads")?.0.parse().ok()) {
                    seen.insert(term, host);
                }
            }
            if ok {
                return;
            }
        }
    };
    // Whoever leads and all others follow; a host that the machine's load has fenced is opened again.
    let settle = || -> u16 {
        let mut recover_at = Instant::now() + Duration::from_secs(2);
        crate::common::wait_for("one leads and all others follow", || {
            if recover_at <= Instant::now() {
                recover_at = Instant::now() + Duration::from_secs(2);
                for host in (1..=3).filter(|host| fenced(*host)) {
                    crate::e2e_failover::fence::fence(&of.borrow().w, host, fide_wire::control::FenceOrder::Recover);
                }
            }
            let of = of.borrow();
            let leader = (1..=3).find(|host| of.ask(*host, "ROLE") == "*3" && of.takes_writes(*host))?;
            let rest = (1..=3).all(|host| host == leader || of.follows(host, leader));
            // An agent that was started again promises its fence when others have confirmed its
            // heartbeats; whose host falls silent before is not replaced.
            let promises = |on: u16, of_host: u16| of.w.view(on, &format!("h{of_host}")).is_some_and(|view| view.fence.is_some());
            let rest = rest && (1..=4).all(|on| (1..=3).all(|host| host == on || promises(on, host)));
            (rest && of.say(leader, &["status"]).1.matches("runs").count() == 3).then_some(leader)
        })
    };
    let lab = fide_lab::Lab::open(of.borrow().w.lab.name()).unwrap();
    let watch = Watch { lab, stop: Default::default(), taken: Default::default() };
    std::thread::scope(|scope| {
        struct Stops<'a>(&'a std::sync::atomic::AtomicBool);
        impl Drop for Stops<'_> {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let _stops = Stops(&watch.stop);
        (1..=3).for_each(|host| {
            _ = scope.spawn({
                let watch = &watch;
                move || watch.write_to(FROM, host)
            })
        });
        let mut seen = std::collections::BTreeMap::new();
        let (mut leader, mut promotions) = (settle(), 0);
        leaders(&mut seen);
        for n in 0..faults {
            // Every kind in turn, each with another host and time.
            let (kind, some) = (n % 12, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
            let other = 1 + (u64::from(leader) + some % 2) as u16 % 3;
            let any = 1 + (some % 3) as u16;
            let short = Duration::from_millis(some % 400);
            let mut next = Some(leader);
            let what = match kind {
                0 | 6 => {
                    of.borrow_mut().kill_server(leader);
                    next = None;
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    of.borrow_mut().start_server(leader);
                    "the leader is killed"
                }
                1 => {
                    of.borrow_mut().kill_server(other);
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    of.borrow_mut().start_server(other);
                    "a follower is killed"
                }
                2 => {
                    of.borrow_mut().stop_server(leader);
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    of.borrow_mut().start_server(leader);
                    "the leader is restarted"
                }
                3 => {
                    of.borrow().servers[usize::from(leader) - 1].as_ref().unwrap().signal(libc::SIGSTOP);
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    of.borrow().servers[usize::from(leader) - 1].as_ref().unwrap().signal(libc::SIGCONT);
                    "the leader pauses"
                }
                4 => {
                    of.borrow().managers[usize::from(any) - 1].as_ref().unwrap().signal(libc::SIGSTOP);
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    of.borrow().managers[usize::from(any) - 1].as_ref().unwrap().signal(libc::SIGCONT);
                    "a manager pauses"
                }
                5 => {
                    let mut of = of.borrow_mut();
                    of.managers[usize::from(any) - 1].take().unwrap().kill();
                    let manager = of.manager(any);
                    of.managers[usize::from(any) - 1] = Some(manager);
                    "a manager is killed"
                }
                7 => {
                    let mut of = of.borrow_mut();
                    of.w.kill_agent(any);
                    of.w.start(any);
                    "an agent is killed"
                }
                8 => {
                    of.borrow().w.lab.cut(any, (some % 2) as u8, fide_lab::Cut::Silent).unwrap();
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    of.borrow().w.lab.heal(any, (some % 2) as u8).unwrap();
                    "one cable is cut"
                }
                9 => {
                    fide_lab::NETS.into_iter().for_each(|net| of.borrow().w.lab.cut(leader, net, fide_lab::Cut::Silent).unwrap());
                    next = None;
                    until("another one leads", || (1..=3).any(|host| host != leader && of.borrow().takes_writes(host)));
                    until("the former one takes none", || of.borrow().ask(leader, "SET probe 3").starts_with("-READONLY"));
                    fide_lab::NETS.into_iter().for_each(|net| of.borrow().w.lab.heal(leader, net).unwrap());
                    "the leader's cables are cut"
                }
                10 => {
                    let (ok, told) = of.borrow().say(any, &["switch", &format!("h{other}")]);
                    assert!(ok, "{told}");
                    next = Some(other);
                    "leadership is handed over"
                }
                _ => {
                    fide_lab::NETS.into_iter().for_each(|net| of.borrow().w.lab.cut(other, net, fide_lab::Cut::Silent).unwrap());
                    // Sleep: length of the fault.
                    std::thread::sleep(short);
                    fide_lab::NETS.into_iter().for_each(|net| of.borrow().w.lab.heal(other, net).unwrap());
                    "a follower's cables are cut"
                }
            };
            let now = settle();
            leaders(&mut seen);
            promotions += u64::from(now != leader);
            assert!(next.is_none_or(|next| next == now), "fault {n}, {what}: h{now} was promoted beside h{leader}: {seen:?}");
            // Everyone who took writes led then, and nobody did a second time without leading again.
            let mut terms = seen.values().peekable();
            for writer in watch.course() {
                assert!(
                    terms.by_ref().any(|leader| *leader == writer),
                    "fault {n}, {what}: two took writes: {:?}, terms {seen:?}",
                    watch.course()
                );
            }
            leader = now;
        }
        println!(
            "{faults} faults, {promotions} promotions, none of them false; {} servers took writes one behind another",
            watch.course().len()
        );
    });
}

/// Somebody who may propose to their group does, and hands in a state of four bytes.
#[test]
fn what_no_manager_proposes_or_keeps_ends_none() {
    let Some(mut of) = Managed::up(2, "", |setup| setup) else { return };
    let options = Options { path: Some(of.w.socket(2)), ..Options::default() };
    let mut group = Group::open_with("failover-orders", options).unwrap();
    for bytes in [&b""[..], b"null", b"\xff\xff", b"{\"entry\":\"take\"}", b"[[[["] {
        group.propose(bytes).unwrap();
    }
    while group.pending() > 0 {
        group.poll(None).unwrap();
    }
    group.keep_snapshot(group.index(), b"null").unwrap();
    of.managers[1].take().unwrap().kill();
    of.managers[1] = Some(of.manager(2));
    until("a manager that comes again says what is wrong", || of.log(2).contains("is not one of managers"));
    assert_eq!((of.ask(1, "SET behind 1"), of.ask(1, "GET behind")), ("+OK".into(), "1".into()));
    for manager in of.managers.iter_mut().flatten() {
        assert!(manager.child.try_wait().unwrap().is_none(), "a manager has ended");
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("FIDE_TEST_LOGS").is_some() {
            (1..=self.hosts).for_each(|host| {
                println!("---- manager of h{host}\n{}", self.log(host));
                let order = fide_wire::control::GroupOrder::Status;
                println!("{:?}", self.w.ask(host, &fide_wire::control::Request::Group { order }));
            });
        }
    }
}
