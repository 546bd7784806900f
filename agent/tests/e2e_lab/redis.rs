//! Real Redis servers with the module of api/redis: a reply means that the group has decided, also while servers and agents are killed.

use crate::common::{PATIENCE, Pins, Process, Setup, World, again, kill, until, wait_for};
use crate::e2e_lab::fence::all_fenced_within;
use crate::e2e_lab::groups::{self, order};
use crate::e2e_lab::hung_disk::{self, Disk};
use crate::e2e_lab::witness::{SWITCHES_OFF, Witnesses};
use fide_lab::{Cut, Lab, NETS};
use fide_wire::control::{GroupOrder, Reply, Request};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

const PORT: u16 = 6379;
/// How often a test without faults is tried on LOWI.
const LOWI_ATTEMPTS: u32 = 6;

pub(super) fn available() -> bool {
    let there = Command::new("redis-server").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        println!("SKIPPED: there is no redis-server: apt-get install redis-server");
    }
    there
}

/// A connection that says what it is told and reads whole replies.
pub(super) struct Client(BufReader<TcpStream>);

impl Client {
    pub(super) fn open(w: &World, host: u16) -> Option<Self> {
        Self::open_in(&w.lab, host)
    }

    pub(super) fn open_in(lab: &Lab, host: u16) -> Option<Self> {
        let stream = lab.in_host(host, || TcpStream::connect(("127.0.0.1", PORT))).unwrap().ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Some(Self(BufReader::new(stream)))
    }

    pub(super) fn say(&mut self, words: &[&str]) -> std::io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(bytes.as_bytes())
    }

    pub(super) fn hear(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_owned();
        let count = || line[1..].parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'$' if count() >= 0 => {
                let mut bytes = vec![0; count() as usize + 2];
                self.0.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned())
            }
            b'*' if count() >= 0 => {
                let elements: std::io::Result<Vec<String>> = (0..count()).map(|_| self.hear()).collect();
                Ok(format!("[{}]", elements?.join(" ")))
            }
            b'>' => {
                let elements: std::io::Result<Vec<String>> = (0..count()).map(|_| self.hear()).collect();
                Ok(format!("push {}", elements?.join(" ")))
            }
            b'$' | b'*' | b'_' => Ok("nil".into()),
            _ => Ok(line),
        }
    }

    pub(super) fn ask(&mut self, words: &str) -> std::io::Result<String> {
        self.say(&words.split(' ').collect::<Vec<_>>())?;
        self.hear()
    }
}

pub(super) fn ask(w: &World, host: u16, words: &str) -> String {
    let Some(mut client) = Client::open(w, host) else { return String::new() };
    client.ask(words).unwrap_or_else(|e| {
        assert!(e.kind() != std::io::ErrorKind::WouldBlock, "h{host} neither answers {words} nor hangs up");
        String::new()
    })
}

pub(super) fn server(w: &World, host: u16, more: &[&str]) -> Process {
    start(w, host, more, &[])
}

fn server_with(w: &World, host: u16, of_the_module: &[&str]) -> Process {
    start(w, host, &[], of_the_module)
}

fn start(w: &World, host: u16, more: &[&str], of_the_module: &[&str]) -> Process {
    Process::spawn(command(w, host, more, of_the_module))
}

fn command(w: &World, host: u16, more: &[&str], of_the_module: &[&str]) -> Command {
    let dir = w.lab.host_dir(host).join("redis");
    fs::create_dir_all(&dir).unwrap();
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let module = std::env::current_exe().unwrap().with_file_name("libfide_redis.so");
    // By its path, so that it can start itself anew.
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&paths).map(|dir| dir.join("redis-server")).find(|path| path.exists()).unwrap();
    let mut command = w.lab.command(host, program.to_str().unwrap()).unwrap();
    command.current_dir(&dir).args(["--port", &PORT.to_string(), "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]);
    command
        .args(["--enable-debug-command", "local"])
        .args(more)
        .arg("--loadmodule")
        .arg(module)
        .args(["group", "orders", "socket"])
        .arg(w.socket(host));
    command.args(["address", &format!("{}:{PORT}", w.lab.ipv4(host, 0))]).args(of_the_module);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command
}

pub(super) struct Servers {
    pub(super) w: World,
    pub(super) servers: Vec<Option<Process>>,
    /// Of hosts with fences.
    _pins: Option<Pins>,
    /// Under the policy *witness*.
    pub(super) witnesses: Option<Rc<Witnesses>>,
    /// The module's settings beside those that all servers have.
    of_the_module: Vec<String>,
}

impl Servers {
    /// A server on each host of a group; the first one leads.
    pub(super) fn up(hosts: u16, engine: &str) -> Option<Self> {
        Self::up_with(hosts, engine, "trust-contract", &[])
    }

    /// Whether any agent's log says so.
    fn has_lost_a_member(&self) -> bool {
        let hosts = 1..=self.servers.len() as u16;
        hosts.into_iter().any(|host| self.w.log(host).contains("this host's member stopped"))
    }

    /// Under the policy *fence* each host has one, which closes where none of the others confirms
    /// for 1 s that it is heard. Under *witness* agents that are asked about are killed.
    pub(super) fn up_with(hosts: u16, engine: &str, policy: &str, settings: &[&str]) -> Option<Self> {
        Self::up_as(hosts, engine, policy, settings, &[])
    }

    /// The same, with settings of the module.
    pub(super) fn up_as(hosts: u16, engine: &str, policy: &str, settings: &[&str], of_the_module: &[&str]) -> Option<Self> {
        if !available() {
            return None;
        }
        let pins = if policy == "fence" { Some(Pins::new()?) } else { None };
        let witnesses = (policy == "witness").then(|| Rc::new(Witnesses::new()));
        let w = match (&pins, &witnesses) {
            (Some(pins), _) => all_fenced_within(pins, hosts, "acknowledged", "1s")?,
            (None, Some(of)) => {
                (1..=hosts).for_each(|host| of.set(host, SWITCHES_OFF));
                let config = Rc::clone(of);
                Setup::hosts(hosts).extra(move |host| config.config(host, "10s")).up()?
            }
            (None, None) => Setup::hosts(hosts).up()?,
        };
        witnesses.iter().for_each(|of| (1..=hosts).for_each(|host| of.note_agent(&w, host)));
        let mut of = Self { w, servers: Vec::new(), _pins: pins, witnesses, of_the_module: Vec::new() };
        of.begin(hosts, (engine, policy), settings, of_the_module);
        Some(of)
    }

    /// A group of all hosts, with a server on each.
    fn begin(&mut self, hosts: u16, (engine, policy): (&str, &str), settings: &[&str], of_the_module: &[&str]) {
        self.w.all_alive();
        let names = (1..=hosts).map(|host| format!("h{host}")).collect();
        let (engine, policy) = (engine.into(), policy.into());
        let order = GroupOrder::Create { name: "orders".into(), engine, policy, hosts: names, durable: false, fresh: false };
        assert!(matches!(self.w.ask(1, &Request::Group { order }), Ok(Reply::Done | Reply::Groups { .. })));
        self.of_the_module = of_the_module.iter().map(|word| (*word).to_owned()).collect();
        for host in 1..=hosts {
            self.servers.push(Some(start(&self.w, host, settings, of_the_module)));
            self.is_ready(host);
        }
    }

    /// What a server says of itself; that it says nothing, if so.
    pub(super) fn status(&self, host: u16) -> String {
        let Some(mut client) = Client::open(&self.w, host) else { return String::new() };
        client.ask("FIDE STATUS").unwrap_or_else(|e| e.to_string())
    }

    /// Starts an agent, of which the others' witnesses know.
    pub(super) fn start_agent(&mut self, host: u16) {
        self.w.start(host);
        self.witnesses.iter().for_each(|of| of.note_agent(&self.w, host));
    }

    pub(super) fn is_in_sync(&self, host: u16) -> bool {
        self.status(host).contains("in-sync :1")
    }

    /// The end of a server's log.
    fn log(&self, host: u16) -> String {
        let log = fs::read_to_string(self.w.lab.host_dir(host).join("redis/log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub(super) fn is_ready(&self, host: u16) {
        let until = Instant::now() + PATIENCE;
        while !self.is_in_sync(host) {
            assert!(
                Instant::now() < until,
                "the server of h{host} has not all that is decided: {:#?}{}",
                self.standings(),
                self.log(host)
            );
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Of each host: what its server says, and its agent of the group, and how the agent sees the
    /// others.
    pub(super) fn standings(&self) -> Vec<String> {
        let of = |host| {
            let group = self.w.ask(host, &Request::Group { order: GroupOrder::Status });
            let sees = |other: u16| self.w.state(host, &format!("h{other}"));
            let others: Vec<String> = (1..=self.servers.len() as u16).filter(|other| *other != host).map(sees).collect();
            format!("h{host}: {}; {group:?}; sees {others:?}", self.status(host))
        };
        (1..=self.servers.len() as u16).map(of).collect()
    }

    pub(super) fn leader(&self) -> Option<u16> {
        (1..=self.servers.len() as u16).find(|host| self.status(*host).contains("this server leads"))
    }

    /// Starts a server again that was killed.
    pub(super) fn restart(&mut self, host: u16) {
        let of_the_module: Vec<&str> = self.of_the_module.iter().map(String::as_str).collect();
        self.servers[usize::from(host) - 1] = Some(start(&self.w, host, &[], &of_the_module));
    }

    pub(super) fn kill(&mut self, host: u16) {
        self.servers[usize::from(host) - 1].take().unwrap().kill();
    }

    /// All servers that run hold the same data.
    pub(super) fn agree(&self) -> String {
        wait_for("all hold the same", || {
            let digests: Vec<String> = (1..=self.servers.len() as u16)
                .filter(|host| self.servers[usize::from(*host) - 1].is_some())
                .map(|host| ask(&self.w, host, "DEBUG DIGEST"))
                .collect();
            let is_digest = |text: &str| text.len() == 41 && text[1..].bytes().all(|byte| byte.is_ascii_hexdigit());
            digests.iter().all(|digest| *digest == digests[0] && is_digest(digest)).then(|| digests[0].clone())
        })
    }
}

#[test]
fn what_is_answered_is_decided_and_all_hold_the_same() {
    for engine in ["huc", "hsuc", "lowi"] {
        // Agents of this build take longer over a megabyte than LOWI allows a frame.
        let large = if engine == "lowi" { 20_000 } else { 1_000_000 };
        for attempt in 1.. {
            let Some(mut of) = Servers::up(3, engine) else { return };
            let Err(failed) = std::panic::catch_unwind(AssertUnwindSafe(|| answers_are_decided(&mut of, large))) else { break };
            // Where a host holds threads up for longer than a group of LOWI allows, its members
            // stop, and the leading server cuts its clients off, as it should.
            if engine != "lowi" || attempt == LOWI_ATTEMPTS || !of.has_lost_a_member() {
                std::panic::resume_unwind(failed);
            }
            again("a member of LOWI stopped that was to go on");
        }
    }
}

fn answers_are_decided(of: &mut Servers, large: usize) {
    let mut client = Client::open(&of.w, 1).unwrap();
    assert_eq!(client.ask("SET key value").unwrap(), "+OK");
    assert_eq!(client.ask("GET key").unwrap(), "value");
    assert_eq!(client.ask("INCR n").unwrap(), ":1");
    assert!(client.ask("LPUSH key x").unwrap().starts_with("-WRONGTYPE"));
    // Effects, not commands: what is random or takes the time is the same everywhere.
    client.ask("SADD set a b c d e f g h").unwrap();
    client.ask("SPOP set 3").unwrap();
    client.ask("SET brief 1 EX 100").unwrap();
    client.say(&["EVAL", "redis.call('set','t',redis.call('time')[2]); return redis.call('incr','n')", "0"]).unwrap();
    assert_eq!(client.hear().unwrap(), ":2");
    client.say(&["SET", "large", &"x".repeat(large)]).unwrap();
    assert_eq!(client.hear().unwrap(), "+OK");
    // Transactions.
    assert_eq!(client.ask("MULTI").unwrap(), "+OK");
    assert_eq!(client.ask("INCR n").unwrap(), "+QUEUED");
    assert_eq!(client.ask("GET key").unwrap(), "+QUEUED");
    assert_eq!(client.ask("EXEC").unwrap(), "[:3 value]");
    assert_eq!(client.ask("WATCH n").unwrap(), "+OK");
    assert_eq!(ask(&of.w, 1, "INCR n"), ":4");
    client.ask("MULTI").unwrap();
    client.ask("SET n 0").unwrap();
    assert_eq!(client.ask("EXEC").unwrap(), "nil", "somebody changed it");
    // Elsewhere.
    for host in [2, 3] {
        assert!(ask(&of.w, host, "GET key").starts_with("-READONLY"), "{}", ask(&of.w, host, "GET key"));
        assert!(ask(&of.w, host, "SET key 2").starts_with("-READONLY"));
    }
    assert!(ask(&of.w, 1, "REPLICAOF NO ONE").starts_with("-ERR fide"));
    assert!(ask(&of.w, 1, "INFO fide").contains("this server leads"));
    of.agree();
    // A server that comes again has nothing, begins with the group's snapshot, and gets everything while writes go on.
    of.kill(3);
    of.servers[2] = Some(server(&of.w, 3, &[]));
    until("it has all that is decided", || {
        client.ask("INCR n").unwrap();
        of.status(3).contains("in-sync :1")
    });
    of.agree();
}

/// Somebody who may propose to the group proposes what no server does, and hands in a state of four
/// bytes.
#[test]
fn what_no_server_proposes_or_keeps_ends_none() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let mut client = Client::open(&of.w, 1).unwrap();
    assert_eq!(client.ask("SET key value").unwrap(), "+OK");
    let mut group = groups::open(&of.w, 2, 66, 0, 0);
    let lead = |host: &str, address: &str| {
        let length = (host.len() as u16).to_le_bytes();
        [&[11][..], &2u64.to_le_bytes(), &0u32.to_le_bytes(), &length, host.as_bytes(), address.as_bytes()].concat()
    };
    let entries = [
        b"".to_vec(),
        b"null".to_vec(),
        vec![0xff; 100],
        lead("h2", "10.0.0.2:6379\r\n+OK"),
        lead("h2", "10.0.0.2:0"),
        lead("h2\n", "10.0.0.2:6379"),
        lead("", ""),
    ];
    entries.iter().for_each(|bytes| _ = group.propose(bytes).unwrap());
    while group.pending() > 0 {
        group.poll(None).unwrap();
    }
    assert_eq!(client.ask("INCR n").unwrap(), ":1", "the leader leads on");
    assert!(of.status(1).contains("this server leads") && of.is_in_sync(2) && of.is_in_sync(3));
    until("a server's log says so", || {
        fs::read_to_string(of.w.lab.host_dir(3).join("redis/log")).unwrap().contains("is none of a server: it is skipped")
    });
    group.keep_snapshot(group.index(), b"null").unwrap();
    // A server that comes again has nothing to begin from, until one that leads has written down
    // its state.
    of.kill(3);
    of.servers[2] = Some(server(&of.w, 3, &[]));
    let mut count = 1;
    until("it has all that is decided", || {
        count += 1;
        assert_eq!(client.ask("INCR n").unwrap(), format!(":{count}"));
        of.is_in_sync(3)
    });
    of.agree();
    assert!(of.status(1).contains("this server leads"));
}

/// Servers of a group that the agents begin by themselves, with nobody's command.
fn of_the_configuration(hosts: u16, durable: bool) -> Option<Servers> {
    if !available() {
        return None;
    }
    let names = (1..=hosts).map(|host| format!("\"h{host}\"")).collect::<Vec<_>>().join(", ");
    let block =
        move |_| format!("[[group]]\nname = \"orders\"\nhosts = [{names}]\npolicy = \"trust-contract\"\ndurable = {durable}\n");
    let w = Setup::hosts(hosts).extra(block).up()?;
    let mut of = Servers { w, servers: Vec::new(), _pins: None, witnesses: None, of_the_module: Vec::new() };
    for host in 1..=hosts {
        of.servers.push(Some(server(&of.w, host, &[])));
        of.is_ready(host);
    }
    Some(of)
}

/// All agents end at once and come back, while the servers run: they go on without an operator, also where the group begins anew with an empty log.
#[test]
fn servers_go_on_when_all_agents_were_killed() {
    for durable in [true, false] {
        let Some(of) = of_the_configuration(3, durable) else { return };
        go_on_when_all_agents_are_killed(of, &format!("durable {durable}"));
    }
}

/// The same of a group that somebody created: nobody does that again.
#[test]
fn servers_of_a_created_group_go_on_when_all_agents_were_killed() {
    let Some(of) = Servers::up(3, "huc") else { return };
    go_on_when_all_agents_are_killed(of, "created");
}

fn go_on_when_all_agents_are_killed(mut of: Servers, what: &str) {
    let mut counted = 0;
    for round in 0..3 {
        let leader = wait_for("one leads", || of.leader());
        let mut client = Client::open(&of.w, leader).unwrap();
        for _ in 0..50 {
            counted += 1;
            assert_eq!(client.ask("INCR n").unwrap(), format!(":{counted}"), "what was answered is there, once");
        }
        (1..=3).for_each(|host| of.w.kill_agent(host));
        // Nothing is decided now, so nothing is answered.
        let answer = client.ask("GET n");
        assert!(!answer.as_ref().is_ok_and(|answer| answer.starts_with(':')), "{answer:?}");
        let since = Instant::now();
        (1..=3).for_each(|host| of.w.start(host));
        let n: i64 = wait_for("one answers", || (1..=3).find_map(|host| ask(&of.w, host, "GET n").parse().ok()));
        println!("{what}, round {round}: answered {:?} after the agents' start", since.elapsed());
        assert_eq!(n, counted);
        (1..=3).for_each(|host| of.is_ready(host));
        of.agree();
    }
}

/// At once: none notices that another one is gone.
fn kill_all_agents(w: &mut World, hosts: u16) {
    (1..=hosts).for_each(|host| w.signal_agent(host, libc::SIGSTOP));
    (1..=hosts).for_each(|host| w.kill_agent(host));
}

/// A group that begins anew: an empty server that is there first does not lead, nor does one that had not everything.
#[test]
fn a_group_that_begins_anew_goes_on_with_the_servers_that_had_all_data() {
    let Some(mut of) = of_the_configuration(3, false) else { return };
    assert_eq!(ask(&of.w, 1, "SET key value"), "+OK");
    of.agree();
    until("all hold everything", || of.status(1).contains("copies :3"));
    // Of the last set, h3's server is gone with its data, and an empty one comes for it.
    of.kill(3);
    until("two hold everything", || of.status(1).contains("copies :2"));
    kill_all_agents(&mut of.w, 3);
    of.servers[2] = Some(server(&of.w, 3, &[]));
    (1..=3).for_each(|host| of.w.start(host));
    (1..=3).for_each(|host| of.is_ready(host));
    let leader = of.leader().unwrap();
    assert!(leader != 3 && ask(&of.w, leader, "GET key") == "value", "h{leader}");
    of.agree();
    // Now one of the last set does not come back: nobody drops anything, until an operator says so.
    until("all hold everything", || of.status(leader).contains("copies :3"));
    assert_eq!(ask(&of.w, leader, "SET key 2"), "+OK");
    of.agree();
    kill_all_agents(&mut of.w, 3);
    of.kill(leader);
    of.servers[usize::from(leader) - 1] = Some(server(&of.w, leader, &[]));
    (1..=3).for_each(|host| of.w.start(host));
    let others: Vec<u16> = (1..=3).filter(|host| *host != leader).collect();
    for host in &others {
        until("it says what it waits for", || of.status(*host).contains("has lost them: FIDE LEAD FORCE"));
    }
    assert_eq!(of.leader(), None);
    assert_eq!(ask(&of.w, others[0], "FIDE LEAD FORCE"), "+OK");
    (1..=3).for_each(|host| of.is_ready(host));
    assert_eq!(ask(&of.w, of.leader().unwrap(), "GET key"), "2");
    of.agree();
}

/// The engine that a group has where nobody names one and no host has a fence: a majority goes on
/// without the leader's host, and keeps it as a member.
#[test]
fn a_leader_whose_host_is_not_heard_is_replaced_by_a_majority() {
    let Some(mut of) = Servers::up(3, "raft") else { return };
    let mut last = 0;
    for how in ["cables", "agent stands still", "host"] {
        until("all hold everything", || of.leader().is_some_and(|host| of.status(host).contains("copies :3")));
        let leader = of.leader().unwrap();
        last += 1;
        assert_eq!(ask(&of.w, leader, &format!("SET key {last}")), "+OK", "{how}");
        let mut waits = Client::open(&of.w, leader).unwrap();
        match how {
            "cables" => NETS.iter().for_each(|net| of.w.lab.cut(leader, *net, Cut::Silent).unwrap()),
            "agent stands still" => of.w.signal_agent(leader, libc::SIGSTOP),
            _ => {
                of.w.kill_agent(leader);
                of.kill(leader);
            }
        }
        let since = Instant::now();
        let others = || (1..=3).filter(|host| *host != leader);
        let n = wait_for("another one leads", || others().find_map(|host| ask(&of.w, host, "GET key").parse::<i64>().ok()));
        println!("{how}: another server leads after {:?}", since.elapsed());
        assert_eq!(n, last, "{how}");
        if how != "host" {
            // Whoever asks the former leader is not kept waiting for ever.
            let held = waits.ask("SET key held").unwrap_or_else(|e| {
                assert!(e.kind() != std::io::ErrorKind::WouldBlock, "{how}: it is kept waiting");
                "-".into()
            });
            assert!(held.starts_with('-'), "{how}: {held}");
        }
        match how {
            "cables" => NETS.iter().for_each(|net| of.w.lab.heal(leader, *net).unwrap()),
            "agent stands still" => of.w.signal_agent(leader, libc::SIGCONT),
            _ => {
                of.w.start(leader);
                of.restart(leader);
            }
        }
        (1..=3).for_each(|host| of.is_ready(host));
        of.agree();
    }
}

/// The only copy is cut off from the majority: its clients are told, also those that come meanwhile,
/// and what those that have gone were owed is let go.
#[test]
fn the_only_copy_cuts_its_clients_off_while_no_majority_is_heard() {
    let Some(mut of) = Servers::up(3, "raft") else { return };
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    (2..=3).for_each(|host| of.kill(host));
    until("it is alone", || of.status(1).contains("copies :1"));
    let mut waits = Client::open(&of.w, 1).unwrap();
    NETS.iter().for_each(|net| of.w.lab.cut(1, *net, Cut::Silent).unwrap());
    let _ = waits.say(&["SET", "key", "2"]);
    until("its clients are told", || ask(&of.w, 1, "SET key 2").contains("nothing was decided"));
    assert!(waits.hear().is_err(), "it is cut off");
    NETS.iter().for_each(|net| of.w.lab.heal(1, *net).unwrap());
    until("it leads again", || ask(&of.w, 1, "SET key 3") == "+OK");
}

/// All agents and all servers end at once (no power): whoever is there first does not lead with
/// what it has, if others may have more.
#[test]
fn servers_that_all_ended_go_on_with_what_the_last_of_them_had_on_disk() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let log = ["--appendonly", "yes", "--appendfsync", "always"];
    let ends = |of: &mut Servers, hosts: &[u16]| {
        hosts.iter().for_each(|host| of.w.signal_agent(*host, libc::SIGSTOP));
        (1..=3)
            .filter(|host| of.servers[*host - 1].is_some())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|host| of.kill(host as u16));
        hosts.iter().for_each(|host| of.w.kill_agent(*host));
    };
    for host in [3, 2, 1] {
        of.kill(host);
        of.servers[usize::from(host) - 1] = Some(server(&of.w, host, &log));
        of.is_ready(host);
    }
    let leader = of.leader().unwrap();
    assert_eq!(ask(&of.w, leader, "SET old 1"), "+OK");
    until("all hold everything", || of.status(leader).contains("copies :3"));
    of.agree();
    // One server ends before the others, and while its log may have nothing yet.
    let early = (1..=3).find(|host| *host != leader).unwrap();
    let names = |of: &Servers, host: u16| {
        let file = of.w.lab.host_dir(host).join("redis/fide-orders.generation");
        fs::read_to_string(file).map_or(0, |text| text.lines().skip(2).count())
    };
    until("who has all data is on its disk", || names(&of, early) == 3);
    of.kill(early);
    until("two hold everything", || of.status(leader).contains("copies :2"));
    assert_eq!(ask(&of.w, leader, "SET new 1"), "+OK");
    let rest: Vec<u16> = (1..=3).filter(|host| *host != early).collect();
    until("the two know it, too", || rest.iter().all(|host| names(&of, *host) == 2));
    ends(&mut of, &[1, 2, 3]);
    (1..=3).for_each(|host| of.w.start(host));
    of.w.all_alive();
    of.servers[usize::from(early) - 1] = Some(server(&of.w, early, &log));
    until("it says for whom it waits", || of.status(early).contains("is missing: FIDE LEAD FORCE"));
    for host in &rest {
        of.servers[usize::from(*host) - 1] = Some(server(&of.w, *host, &log));
    }
    (1..=3).for_each(|host| of.is_ready(host));
    let leader = of.leader().unwrap();
    assert!(rest.contains(&leader) && ask(&of.w, leader, "GET new") == "1", "h{leader}");
    of.agree();
    // With snapshots only nobody knows how far they go: a person decides.
    until("all hold everything", || of.status(leader).contains("copies :3"));
    (1..=3).for_each(|host| assert_eq!(ask(&of.w, host, "CONFIG SET appendonly no"), "+OK"));
    (1..=3).for_each(|host| until("it is saved", || ask(&of.w, host, "SAVE") == "+OK"));
    ends(&mut of, &[1, 2, 3]);
    (1..=3).for_each(|host| of.w.start(host));
    of.w.all_alive();
    (1..=3u16).for_each(|host| of.servers[usize::from(host) - 1] = Some(server(&of.w, host, &[])));
    (1..=3).for_each(|host| until("it asks", || of.status(host).contains("how far its data go")));
    assert_eq!(ask(&of.w, 2, "FIDE LEAD FORCE"), "+OK");
    (1..=3).for_each(|host| of.is_ready(host));
    assert_eq!((of.leader(), ask(&of.w, 2, "GET new")), (Some(2), "1".into()));
}

/// All servers end, and the agents live: nobody has the data any more, and everybody says so.
#[test]
fn servers_that_all_ended_without_their_data_say_what_is_to_be_done() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    assert_eq!(ask(&of.w, 1, "SET key value"), "+OK");
    of.agree();
    (1..=2).for_each(|host| of.kill(host));
    (1..=2).for_each(|host| of.restart(host));
    for host in [1, 2] {
        until("it says what is to be done", || {
            ask(&of.w, host, "GET key").contains("FIDE LEAD FORCE on the server whose data shall stay")
        });
    }
    // One of them has some: the other one does not lead without a further word.
    assert_eq!(ask(&of.w, 1, "DEBUG POPULATE 10"), "+OK");
    let refused = ask(&of.w, 2, "FIDE LEAD FORCE");
    assert!(refused.contains("has 10 keys") && refused.contains("this server has 0 keys"), "{refused}");
    assert!(refused.contains("DISCARD"), "{refused}");
    assert_eq!(ask(&of.w, 1, "FIDE LEAD FORCE"), "+OK");
    (1..=2).for_each(|host| of.is_ready(host));
    assert_eq!(ask(&of.w, 1, "DBSIZE"), ":10");
}

/// A server for which a command of the stream has no effect has other data from there on.
#[test]
fn a_server_that_cannot_execute_the_stream_is_not_in_sync() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    of.kill(1);
    wait_for("h2 leads", || of.leader().filter(|host| *host == 2));
    of.servers[0] = Some(server(&of.w, 1, &["--rename-command", "SETNX", "XSETNX"]));
    of.is_ready(1);
    assert_eq!(ask(&of.w, 2, "SET key value"), "+OK");
    until("both are copies", || of.status(2).contains("copies :2"));
    assert_eq!(ask(&of.w, 2, "SETNX other 1"), ":1");
    until("it is no copy", || of.status(2).contains("copies :1"));
    until("both say why", || [1, 2].iter().all(|host| of.status(*host).contains("could not execute a command")));
    // It does not lead either.
    of.kill(2);
    // Sleep: it would lead within some ms.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!of.is_in_sync(1) && ask(&of.w, 1, "GET key").starts_with('-'));
}

/// What the module keeps back is what the server writes, so that it need not know commands: those that wait, push, stream or end a connection are replies, too.
#[test]
fn every_kind_of_command_works_on_the_leader() {
    let Some(of) = Servers::up(2, "huc") else { return };
    let (mut one, mut two) = (Client::open(&of.w, 1).unwrap(), Client::open(&of.w, 1).unwrap());
    // Commands that wait.
    one.say(&["BLPOP", "list", "0"]).unwrap();
    assert_eq!(two.ask("RPUSH list a b").unwrap(), ":2");
    assert_eq!(one.hear().unwrap(), "[list a]");
    one.say(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]).unwrap();
    two.ask("XADD stream 1-1 k v").unwrap();
    assert_eq!(one.hear().unwrap(), "[[stream [[1-1 [k v]]]]]");
    assert_eq!(one.ask("BLPOP none 0.01").unwrap(), "nil");
    // The module is the one replica that the server knows.
    assert_eq!(two.ask("WAIT 1 5000").unwrap(), ":1");
    // Transactions are the server's own.
    two.ask("MULTI").unwrap();
    assert!(two.ask("NOSUCH").unwrap().starts_with("-ERR unknown"));
    assert!(two.ask("EXEC").unwrap().starts_with("-EXECABORT"));
    two.ask("MULTI").unwrap();
    assert_eq!(two.ask("RESET").unwrap(), "+RESET");
    assert_eq!(two.ask("SET key 1").unwrap(), "+OK");
    // Functions.
    two.say(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=l\nredis.register_function('put', function(k, a) return redis.call('set', k[1], a[1]) end)",
    ])
    .unwrap();
    assert_eq!(two.hear().unwrap(), "l");
    assert_eq!(two.ask("FCALL put 1 key 2").unwrap(), "+OK");
    // A large reply, which is more than what is kept back for one client at once.
    two.say(&["SET", "large", &"x".repeat(5_000_000)]).unwrap();
    assert_eq!(two.hear().unwrap(), "+OK");
    assert_eq!(two.ask("GET large").unwrap().len(), 5_000_000);
    // Messages, and what a client's cache is told.
    one.ask("SUBSCRIBE news").unwrap();
    assert_eq!(two.ask("PUBLISH news hello").unwrap(), ":1");
    assert_eq!(one.hear().unwrap(), "[message news hello]");
    let mut cache = Client::open(&of.w, 1).unwrap();
    cache.say(&["HELLO", "3"]).unwrap();
    cache.say(&["CLIENT", "TRACKING", "ON"]).unwrap();
    cache.say(&["GET", "key"]).unwrap();
    wait_for("the reply", || (cache.hear().unwrap() == "2").then_some(()));
    two.ask("SET key 3").unwrap();
    assert_eq!(cache.hear().unwrap(), "push invalidate [key]");
    // The user needs no right for anything of the module.
    assert_eq!(two.ask("ACL SETUSER u on >p ~* +get").unwrap(), "+OK");
    assert_eq!(two.ask("AUTH u p").unwrap(), "+OK");
    assert_eq!(two.ask("GET key").unwrap(), "3");
    assert!(two.ask("SET key 4").unwrap().starts_with("-NOPERM"));
    // The last reply of a connection.
    assert_eq!(two.ask("QUIT").unwrap(), "+OK");
    assert!(two.hear().is_err(), "it is closed");
    of.agree();
}

/// A pipeline is executed at once and decided together.
#[test]
fn commands_that_are_sent_together_are_answered_in_order() {
    together(&[]);
    // Other threads write to clients, and every write goes to the disk first.
    together(&["--io-threads", "3", "--io-threads-do-reads", "yes", "--appendonly", "yes", "--appendfsync", "always"]);
}

fn together(settings: &[&str]) {
    let Some(of) = Servers::up_with(2, "huc", "trust-contract", settings) else { return };
    let mut clients: Vec<Client> = (0..8).map(|_| Client::open(&of.w, 1).unwrap()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        for n in 0..32 {
            client.say(&["RPUSH", &format!("list:{at}"), &n.to_string()]).unwrap();
            client.say(&["LLEN", &format!("list:{at}")]).unwrap();
        }
    }
    for client in &mut clients {
        for n in 1..=32 {
            assert_eq!(client.hear().unwrap(), format!(":{n}"));
            assert_eq!(client.hear().unwrap(), format!(":{n}"));
        }
    }
    // Reads alone, which change nothing.
    clients[0].say(&["GET", "none"]).unwrap();
    clients[0].say(&["GET", "none"]).unwrap();
    assert_eq!((clients[0].hear().unwrap(), clients[0].hear().unwrap()), ("nil".into(), "nil".into()));
    of.agree();
}

/// Clients count up one number by whatever server leads; nothing that was answered is lost, and nothing happens twice.
#[test]
fn a_server_that_is_killed_loses_nothing_and_another_leads() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let mut answered = 0i64;
    let mut unknown = 0i64;
    for round in 0..4 {
        let leader = wait_for("a server leads", || of.leader());
        let mut client = Client::open(&of.w, leader).unwrap();
        for _ in 0..200 {
            client.ask("INCR n").map(|reply| assert!(reply.starts_with(':'), "{reply}")).unwrap();
            answered += 1;
        }
        client.say(&["INCR", "n"]).unwrap();
        unknown += 1;
        let since = Instant::now();
        of.kill(leader);
        let next = wait_for("another leads", || {
            (1..=3).filter(|host| *host != leader).find(|host| ask(&of.w, *host, "SET probe 1") == "+OK")
        });
        println!("round {round}: h{next} leads after {:?}, as a new connection each time sees it", since.elapsed());
        let n: i64 = ask(&of.w, next, "GET n").parse().unwrap();
        assert!((answered..=answered + unknown).contains(&n), "{n} of {answered} answered and {unknown} unknown");
        of.servers[usize::from(leader) - 1] = Some(server(&of.w, leader, &[]));
        of.is_ready(leader);
        of.agree();
    }
}

#[test]
fn leadership_is_handed_over_on_an_operators_word() {
    let Some(of) = Servers::up(3, "huc") else { return };
    assert_eq!(ask(&of.w, 1, "SET key value"), "+OK");
    assert_eq!(ask(&of.w, 1, "FIDE STEPDOWN"), "+OK");
    let next = wait_for("another leads", || of.leader().filter(|host| *host != 1));
    assert_eq!(ask(&of.w, next, "GET key"), "value");
    of.is_ready(1);
    of.agree();
    assert!(ask(&of.w, 1, "FIDE STEPDOWN").starts_with("-ERR"), "it does not lead");
}

#[test]
fn agents_that_are_killed_lose_nothing_either() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    for round in 0..3 {
        let leader = wait_for("a server leads", || of.leader());
        let mut client = Client::open(&of.w, leader).unwrap();
        for n in 0..50 {
            assert_eq!(client.ask(&format!("RPUSH list {round}-{n}")).unwrap(), format!(":{}", round * 50 + n + 1));
        }
        // Its server lives, and knows nothing any more: it answers nothing until it has an agent.
        let other = if round == 1 { leader % 3 + 1 } else { leader };
        of.w.kill_agent(other);
        let next = wait_for("a server answers", || {
            (1..=3).find(|host| ask(&of.w, *host, "LLEN list") == format!(":{}", round * 50 + 50))
        });
        assert_eq!(next == leader, round == 1, "h{next} leads behind h{leader}");
        of.w.start(other);
        (1..=3).for_each(|host| of.is_ready(host));
        of.agree();
    }
}

/// One of several clients that append growing numbers to a list of their own, many at a time.
struct Writer {
    client: Option<Client>,
    list: String,
    next: u32,
    /// Sent, and not answered.
    open: std::collections::VecDeque<u32>,
    answered: Vec<u32>,
}

impl Writer {
    fn send(&mut self, w: &World, hosts: u16) {
        if self.client.is_none() {
            let leads = |host: &u16| {
                let mut client = Client::open(w, *host)?;
                client.ask("PING").ok().filter(|_| client.ask("EXISTS none").is_ok_and(|reply| reply == ":0")).map(|_| client)
            };
            self.client = (1..=hosts).find_map(|host| leads(&host));
        }
        let Some(client) = &mut self.client else { return };
        let mut bytes = Vec::new();
        for _ in 0..16 {
            self.next += 1;
            self.open.push_back(self.next);
            let number = self.next.to_string();
            let (list, len) = (&self.list, number.len());
            bytes.extend(format!("*3\r\n$5\r\nRPUSH\r\n${}\r\n{list}\r\n${len}\r\n{number}\r\n", list.len()).bytes());
        }
        if client.0.get_mut().write_all(&bytes).is_err() {
            self.lose();
        }
    }

    /// What was sent and not answered is in the list or not.
    fn lose(&mut self) {
        self.client = None;
        self.open.clear();
    }

    fn hear(&mut self) {
        while let Some(number) = self.open.front().copied() {
            match self.client.as_mut().map(Client::hear) {
                Some(Ok(reply)) if reply.starts_with(':') => {
                    self.answered.push(number);
                    self.open.pop_front();
                }
                Some(Err(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("{} is neither answered nor hung up", self.list)
                }
                _ => return self.lose(),
            }
        }
    }
}

/// Pipelines of several clients while servers and agents are killed and stand still, at any moment: what was answered is there, once and in order.
#[test]
fn pipelines_lose_nothing_whatever_is_killed() {
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let writer = |at| Writer {
        client: None,
        list: format!("list:{at}"),
        next: 0,
        open: std::collections::VecDeque::new(),
        answered: Vec::new(),
    };
    let mut writers: Vec<Writer> = (0..4).map(writer).collect();
    for round in 0..15u16 {
        let leader = wait_for("a server leads", || of.leader());
        let until_answered = writers.iter().map(|writer| writer.answered.len()).sum::<usize>() + 500;
        while writers.iter().map(|writer| writer.answered.len()).sum::<usize>() < until_answered {
            writers.iter_mut().for_each(|writer| writer.send(&of.w, 3));
            writers.iter_mut().for_each(Writer::hear);
        }
        writers.iter_mut().for_each(|writer| writer.send(&of.w, 3));
        let other = leader % 3 + 1;
        match round % 5 {
            0 => of.kill(leader),
            1 => of.w.kill_agent(leader),
            2 => {
                let stands_still = of.servers[usize::from(leader) - 1].as_ref().unwrap();
                stands_still.signal(libc::SIGSTOP);
                // Sleep: the pause of the server.
                std::thread::sleep(Duration::from_millis(30));
                stands_still.signal(libc::SIGCONT);
            }
            3 => of.kill(other),
            // Of a value that takes many frames half are lost, until they leave on both paths.
            _ => {
                of.w.lab.cut(leader, (round % 2) as u8, Cut::Silent).unwrap();
                for _ in 0..20 {
                    writers.iter_mut().for_each(Writer::hear);
                    writers.iter_mut().for_each(|writer| writer.send(&of.w, 3));
                }
                of.w.lab.heal(leader, (round % 2) as u8).unwrap();
            }
        }
        writers.iter_mut().for_each(Writer::hear);
        match round % 5 {
            1 => of.w.start(leader),
            0 | 3 => {
                let host = if round % 5 == 0 { leader } else { other };
                wait_for("a server leads", || of.leader());
                of.servers[usize::from(host) - 1] = Some(server(&of.w, host, &[]));
            }
            _ => {}
        }
        (1..=3).for_each(|host| of.is_ready(host));
    }
    let leader = wait_for("a server leads", || of.leader());
    let mut client = Client::open(&of.w, leader).unwrap();
    for writer in &writers {
        let there = client.ask(&format!("LRANGE {} 0 -1", writer.list)).unwrap();
        let there: Vec<u32> = there.trim_matches(['[', ']']).split(' ').map(|number| number.parse().unwrap()).collect();
        assert!(there.is_sorted_by(|a, b| a < b), "each once and in order");
        let lost: Vec<_> = writer.answered.iter().filter(|number| there.binary_search(number).is_err()).collect();
        assert!(lost.is_empty(), "{lost:?} were answered and are not there");
        println!("{}: {} answered, {} there, {} sent", writer.list, writer.answered.len(), there.len(), writer.next);
    }
    of.agree();
}

/// While no agent answers, no reply leaves, encrypted or not.
#[test]
fn nothing_is_answered_that_the_group_has_not_confirmed_over_tls_either() {
    const TLS_PORT: &str = "6390";
    let made = Command::new("openssl")
        .current_dir(std::env::temp_dir())
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=redis", "-days", "1", "-keyout"])
        .args([format!("fide-{}.key", std::process::id()), "-out".into(), format!("fide-{}.crt", std::process::id())])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("SKIPPED: there is no openssl: apt-get install openssl");
        return;
    }
    let [key, certificate] = ["key", "crt"].map(|kind| std::env::temp_dir().join(format!("fide-{}.{kind}", std::process::id())));
    let (key_text, certificate_text) = (key.display().to_string(), certificate.display().to_string());
    let settings =
        ["--tls-port", TLS_PORT, "--tls-auth-clients", "no", "--tls-key-file", &key_text, "--tls-cert-file", &certificate_text];
    let of = Servers::up_with(2, "huc", "trust-contract", &settings);
    if let Some(of) = &of {
        // A server is given its data by its own module, which speaks no TLS.
        let _refused = server(
            &of.w,
            1,
            &[
                &settings[..],
                &["--port", "6391", "--tls-port", "6392", "--tls-replication", "yes", "--tls-ca-cert-file", &certificate_text],
            ]
            .concat(),
        );
        ends_with(&of.w, "say tls-replication no");
    }
    [key, certificate].iter().for_each(|file| _ = fs::remove_file(file));
    let Some(of) = of else { return };
    let set_within = |seconds: &str, more: &[&str]| {
        let mut cli = of.w.lab.command(1, "timeout").unwrap();
        cli.args([seconds, "redis-cli", "-p"]).args(more).args(["SET", "key", "value"]);
        String::from_utf8_lossy(&cli.stdin(Stdio::null()).output().unwrap().stdout).trim().to_owned()
    };
    assert_eq!(set_within("20", &["6379"]), "OK");
    assert_eq!(set_within("20", &[TLS_PORT, "--tls", "--insecure"]), "OK");
    of.w.signal_agent(1, libc::SIGSTOP);
    let unanswered = [set_within("1", &["6379"]), set_within("1", &[TLS_PORT, "--tls", "--insecure"])];
    // None, or that this server leads no more.
    assert!(unanswered.iter().all(|told| told.is_empty() || told.starts_with("NOREPLICAS")), "{unanswered:?}");
    of.w.signal_agent(1, libc::SIGCONT);
    until("a server answers", || (1..=2).any(|host| ask(&of.w, host, "SET key 2") == "+OK"));
}

/// A server that stood still while another one was made the leader answers nothing of its own.
#[test]
fn a_stopped_leader_that_wakes_up_answers_nothing_that_is_not_decided() {
    let Some(of) = Servers::up(3, "huc") else { return };
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    let mut old = Client::open(&of.w, 1).unwrap();
    assert_eq!(old.ask("GET key").unwrap(), "1");
    let stopped = of.servers[0].as_ref().unwrap();
    stopped.signal(libc::SIGSTOP);
    old.say(&["GET", "key"]).unwrap();
    old.say(&["SET", "key", "old"]).unwrap();
    assert_eq!(ask(&of.w, 2, "FIDE LEAD FORCE"), "+OK");
    until("h2 leads", || ask(&of.w, 2, "SET key 2") == "+OK");
    stopped.signal(libc::SIGCONT);
    // An error, or a connection that was closed: Redis does that to clients when it becomes a replica.
    for what in ["a stale read", "a lost write"] {
        let reply = old.hear().unwrap_or_else(|_| "-".into());
        assert!(reply.starts_with('-'), "{what}: {reply}");
    }
    of.is_ready(1);
    assert_eq!(ask(&of.w, 2, "GET key"), "2");
    of.agree();
}

/// The connection by which the leader's stream comes is a client to it: an operator who ends clients ends that, too. The stream goes on, and nothing is lost.
#[test]
fn a_leader_leads_on_whichever_clients_are_killed() {
    let Some(of) = Servers::up(3, "huc") else { return };
    let term = ask(&of.w, 1, "FIDE STATUS");
    let kills = ["CLIENT KILL TYPE replica", "CLIENT KILL TYPE replica SKIPME no", "CLIENT KILL LADDR", "CLIENT KILL SKIPME yes"];
    let mut writer = Client::open(&of.w, 1).unwrap();
    let mut written = 0;
    for round in 0..20 {
        let mut operator = Client::open(&of.w, 1).unwrap();
        let kill = match kills[round % kills.len()] {
            "CLIENT KILL LADDR" => {
                let list = operator.ask("CLIENT LIST TYPE replica").unwrap();
                let address = list.split(' ').find_map(|field| field.strip_prefix("laddr=")).map(str::to_owned);
                // The one before has not come back yet.
                let Some(address) = address else { continue };
                format!("CLIENT KILL LADDR {address} SKIPME yes")
            }
            kill => kill.to_owned(),
        };
        // Within one turn of the server: what is written is of its stream's last part.
        let incr: &[&str] = &["INCR", "n"];
        let kill: Vec<&str> = kill.split(' ').collect();
        let large = "x".repeat(if round % 3 == 0 { 200_000 } else { 10 });
        let set = ["SET", "large", &large];
        for words in [incr, &kill, incr, &set, incr] {
            operator.say(words).unwrap();
        }
        let mut answers: Vec<String> = (0..5).map(|_| operator.hear().unwrap()).collect();
        assert_eq!(answers.remove(3), "+OK");
        assert_eq!([&answers[0], &answers[2], &answers[3]], [1, 2, 3].map(|n| format!(":{}", written + n)).each_ref());
        assert!(answers[1] != ":0", "{kill:?}: {answers:?}");
        written += 3;
        if writer.ask("INCR n").is_ok() {
            written += 1;
        } else {
            writer = Client::open(&of.w, 1).unwrap();
            written = writer.ask("GET n").unwrap().parse().unwrap();
        }
    }
    assert_eq!(ask(&of.w, 1, "GET n"), written.to_string());
    let now = ask(&of.w, 1, "FIDE STATUS");
    let term_of = |status: &str| status.split("term :").nth(1).map(|rest| rest.split(' ').next().unwrap().to_owned());
    assert!(term_of(&now).is_some() && term_of(&now) == term_of(&term), "{now}");
    of.agree();
}

/// With `hung-after` a leader that stands still is replaced; it takes no write that the next one has not.
#[test]
fn a_leader_that_hangs_is_replaced_where_that_is_wanted() {
    for reads in ["entry", "lease"] {
        let Some(of) = Servers::up_as(3, "huc", "trust-contract", &[], &["hung-after", "400", "reads", reads]) else { return };
        let mut leader = 1;
        for (round, how) in ["stopped", "asleep", "stopped"].into_iter().enumerate() {
            let mut old = Client::open(&of.w, leader).unwrap();
            assert_eq!(old.ask(&format!("SET key {round}")).unwrap(), "+OK");
            let server = of.servers[usize::from(leader) - 1].as_ref().unwrap();
            match how {
                "stopped" => server.signal(libc::SIGSTOP),
                _ => old.say(&["DEBUG", "SLEEP", "4"]).unwrap(),
            }
            let (hung, began) = (leader, Instant::now());
            leader = wait_for("another server takes writes", || {
                (1..=3).find(|host| *host != hung && ask(&of.w, *host, &format!("SET key new{round}")) == "+OK")
            });
            println!("{how}, reads {reads}: h{leader} takes writes {:?} after that", began.elapsed());
            old.say(&["GET", "key"]).unwrap();
            server.signal(libc::SIGCONT);
            // The answer to DEBUG SLEEP was not decided, either.
            let told = old.hear().unwrap_or_default();
            assert!(told.is_empty() || told.starts_with('-'), "{told}");
            of.is_ready(hung);
        }
        of.agree();
    }
}

/// The disk of the leader's agent hangs, so that it tells its server of no entry of a durable group. Operators are answered meanwhile, and another one leads.
#[test]
fn a_leader_whose_log_is_not_written_answers_operators_and_lets_another_lead() {
    if !available() {
        return;
    }
    let Some(disk) = Disk::new("a leader whose log is not written") else { return };
    let Some(w) = hung_disk::world(&disk) else { return };
    let names = (1..=3).map(|host| format!("h{host}")).collect();
    let (engine, policy) = ("huc".into(), "trust-contract".into());
    order(&w, 1, GroupOrder::Create { name: "orders".into(), engine, policy, hosts: names, durable: true, fresh: false })
        .unwrap();
    let mut of = Servers { w, servers: Vec::new(), _pins: None, witnesses: None, of_the_module: Vec::new() };
    for host in 1..=3 {
        of.servers.push(Some(server(&of.w, host, &[])));
        of.is_ready(host);
    }
    let mut client = Client::open(&of.w, 1).unwrap();
    assert_eq!(client.ask("SET key 1").unwrap(), "+OK");
    let frozen = disk.freeze();
    client.say(&["SET", "key", "2"]).unwrap();
    assert_eq!(ask(&of.w, 1, "PING"), "+PONG");
    assert!(ask(&of.w, 1, "INFO fide").contains("fide_group:") && of.status(1).contains("role "));
    let began = Instant::now();
    let leader =
        wait_for("another server takes writes", || [2, 3].into_iter().find(|host| ask(&of.w, *host, "SET key 3") == "+OK"));
    println!("h{leader} takes writes {:?} later", began.elapsed());
    assert!(!client.hear().unwrap_or_default().starts_with('+'));
    until("it says why", || of.status(1).contains("agent does not take the log"));
    drop(frozen);
    of.is_ready(1);
    assert_eq!(ask(&of.w, leader, "GET key"), "3");
    of.agree();
}

/// A server whose clock is ahead gives away what is locked: it is not in sync, and never leads.
#[test]
fn a_server_whose_clock_is_ahead_is_not_in_sync_and_gives_no_lock_away() {
    /// A program that it is preloaded into takes the time for so many seconds later than it is.
    const AHEAD: &str = r#"
        #define _GNU_SOURCE
        #include <sys/syscall.h>
        #include <sys/time.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *now) {
            long done = syscall(SYS_clock_gettime, clock, now);
            if (!done && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += 15;
            return done;
        }
        int gettimeofday(struct timeval *now, void *zone) {
            struct timespec exact;
            (void)zone;
            clock_gettime(CLOCK_REALTIME, &exact);
            now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
            return 0;
        }
        time_t time(time_t *now) {
            struct timespec exact;
            clock_gettime(CLOCK_REALTIME, &exact);
            if (now) *now = exact.tv_sec;
            return exact.tv_sec;
        }"#;
    let Some(mut of) = Servers::up(3, "huc") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("ahead.c"), dir.path().join("ahead.so"));
    fs::write(&source, AHEAD).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(made.success());
    of.kill(3);
    let mut ahead = command(&of.w, 3, &[], &[]);
    ahead.env("LD_PRELOAD", &library);
    of.servers[2] = Some(Process::spawn(ahead));
    let mut count = 0;
    until("it is known that its clock is ahead", || {
        count += 1;
        assert_eq!(ask(&of.w, 1, &format!("SET key {count}")), "+OK");
        of.status(3).contains("ms ahead of the leader's")
    });
    until("it is off the list, and all are told why", || {
        let status = of.status(1);
        status.contains("copies :2") && status.contains("ms ahead of the leader's") && of.is_in_sync(2) && !of.is_in_sync(3)
    });
    assert_eq!(ask(&of.w, 1, "SET lock mine NX PX 14000"), "+OK");
    of.kill(1);
    let leader = wait_for("another server takes writes", || (2..=3).find(|host| ask(&of.w, *host, "SET key x") == "+OK"));
    assert_eq!((leader, ask(&of.w, leader, "SET lock yours NX PX 14000")), (2, "nil".into()));
    of.restart(1);
    of.is_ready(1);
    // Its clock is right again.
    of.kill(3);
    of.restart(3);
    of.is_ready(3);
    of.agree();
}

/// Of `INFO fide`.
fn count(w: &World, host: u16, name: &str) -> u64 {
    let info = ask(w, host, "INFO fide");
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("fide_{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).parse().unwrap()
}

/// A leader with a lease answers reads at once, and one that shows an undecided write when that is decided.
#[test]
fn reads_are_answered_at_once_while_the_leader_has_a_lease() {
    let Some(of) = Servers::up_as(3, "huc", "trust-contract", &[], &["reads", "lease"]) else { return };
    let mut one = Client::open(&of.w, 1).unwrap();
    assert!(ask(&of.w, 1, "INFO fide").contains("fide_reads:lease"));
    assert_eq!(one.ask("SET a 1").unwrap(), "+OK");
    assert_eq!(one.ask("SET b 1").unwrap(), "+OK");
    // The machine may take longer than a lease for anything; then reads wait for entries, and begin again.
    until("reads are answered at once", || {
        let before = count(&of.w, 1, "replies_at_once");
        (0..100).for_each(|_| assert_eq!(one.ask("GET a").unwrap(), "1"));
        count(&of.w, 1, "replies_at_once") >= before + 50
    });
    // The group decides nothing for a while: who reads what was written waits, and nobody else. A leader of which nothing is decided for long lets another lead.
    let mut shown = 0;
    until("a read is answered beside a write that is not decided", || {
        let Some(leader) = of.leader() else { return false };
        let agents = |signal| (1..=3).filter(|host| *host != leader).for_each(|host| of.w.signal_agent(host, signal));
        let Some([mut one, mut two, mut other, mut written]) = clients(&of.w, leader) else { return false };
        shown += 1;
        if one.ask("SET b 1").is_err() {
            return false;
        }
        agents(libc::SIGSTOP);
        let words = ["SET", "a", &format!("new {shown}")];
        let read = two.say(&words).and_then(|()| written.say(&["GET", "a"])).and_then(|()| other.ask("GET b"));
        let was_silent = is_silent(&two) && is_silent(&written);
        agents(libc::SIGCONT);
        let (answered, a) = (two.hear(), written.hear().unwrap_or_default());
        assert!(a.is_empty() || a == format!("new {shown}") || a.starts_with('-'), "what was shown when it was decided: {a}");
        let counted = count(&of.w, leader, "replies_after_write");
        read.is_ok_and(|read| read == "1") && was_silent && answered.is_ok_and(|answer| answer == "+OK") && counted > 0
    });
    of.agree();
}

/// Four connections to one server.
fn clients(w: &World, host: u16) -> Option<[Client; 4]> {
    let clients: Option<Vec<Client>> = (0..4).map(|_| Client::open(w, host)).collect();
    clients?.try_into().ok()
}

/// Nothing has come yet.
fn is_silent(client: &Client) -> bool {
    let stream = client.0.get_ref();
    stream.set_nonblocking(true).unwrap();
    let is_silent = stream.peek(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    is_silent
}

/// The agent of the leading server is killed: the server does not know at once that another one leads. It answers nothing old behind the other one's first answer.
#[test]
fn a_leader_that_answers_reads_at_once_says_nothing_old_when_another_one_leads() {
    let Some(mut of) = Servers::up_as(3, "huc", "trust-contract", &[], &["reads", "lease"]) else { return };
    let mut leader = 1u16;
    for round in 1..=5 {
        let mut old = wait_for("the leader answers", || {
            leader = of.leader()?;
            let mut client = Client::open(&of.w, leader)?;
            (client.ask(&format!("SET key {round}")).ok()? == "+OK").then_some(client)
        });
        let next = wait_for("another server is in sync", || (1..=3).find(|host| *host != leader && of.is_in_sync(*host)));
        let (mut at_once, before) = (0, Instant::now());
        // It stands still where its server could not tell from the socket that it is gone.
        if round % 2 == 0 {
            of.w.signal_agent(leader, libc::SIGSTOP)
        } else {
            of.w.kill_agent(leader)
        };
        let _ = ask(&of.w, next, "FIDE LEAD FORCE");
        let written = format!("SET key new{round}");
        loop {
            let is_written = (1..=3).filter(|host| *host != leader).any(|host| ask(&of.w, host, &written) == "+OK");
            if is_written {
                break;
            }
            // While nobody else answers it may answer.
            if old.0.get_ref().peer_addr().is_ok() && before.elapsed() < Duration::from_millis(90) {
                at_once += u32::from(old.ask("GET key").is_ok_and(|reply| reply == round.to_string()));
            }
            assert!(before.elapsed() < PATIENCE, "nobody takes writes: {:#?}", of.standings());
        }
        let _ = old.say(&["GET", "key"]);
        old.0.get_ref().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let told = old.hear().unwrap_or_default();
        assert!(told != round.to_string(), "round {round}: old, {:?} after the agent's end", before.elapsed());
        println!("round {round}: another server writes {:?} after the agent's end; {at_once} reads before", before.elapsed());
        if round % 2 == 0 {
            of.w.signal_agent(leader, libc::SIGCONT)
        } else {
            of.start_agent(leader)
        };
        (1..=3).for_each(|host| of.is_ready(host));
    }
    of.agree();
}

/// What somebody's disk holds does not go for an empty server's data unless that is said.
#[test]
fn data_that_are_not_the_groups_are_dropped_only_on_an_operators_word() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    of.kill(2);
    // A server without the module has written them.
    let dir = of.w.lab.host_dir(2).join("redis");
    let _ = fs::remove_file(dir.join("fide-orders.generation"));
    let mut alone = of.w.lab.command(2, "redis-server").unwrap();
    alone.current_dir(&dir).args(["--port", "6379", "--save", ""]).stdin(Stdio::null()).stdout(Stdio::null());
    let alone = Process::spawn(alone);
    until("it takes writes", || ask(&of.w, 2, "SET precious 1") == "+OK");
    assert_eq!(ask(&of.w, 2, "SAVE"), "+OK");
    drop(alone);
    assert_eq!(ask(&of.w, 1, "SET key value"), "+OK");
    of.servers[1] = Some(server(&of.w, 2, &[]));
    until("it says what it waits for", || ask(&of.w, 2, "GET precious").contains("FIDE FOLLOW FORCE"));
    assert!(ask(&of.w, 2, "INFO keyspace").contains("keys=1"), "they are there still");
    assert_eq!(ask(&of.w, 2, "FIDE FOLLOW FORCE"), "+OK");
    of.is_ready(2);
    of.agree();
    // Behind a restart they are the group's.
    assert_eq!(ask(&of.w, 2, "SAVE"), "+OK");
    of.kill(2);
    of.servers[1] = Some(server(&of.w, 2, &[]));
    of.is_ready(2);
    of.agree();
}

/// A leader whose agent is no member any more had kept its clients waiting for ever.
#[test]
fn a_leader_whose_host_leaves_the_group_tells_its_clients() {
    let Some(of) = Servers::up(2, "huc") else { return };
    let mut client = Client::open(&of.w, 1).unwrap();
    assert_eq!(client.ask("SET key 1").unwrap(), "+OK");
    order(&of.w, 1, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    // An error, or a connection that was closed.
    let held = client.ask("SET key held").unwrap_or_else(|e| {
        assert!(e.kind() != std::io::ErrorKind::WouldBlock, "it is kept waiting");
        "-".into()
    });
    assert!(held.starts_with('-'), "{held}");
    until("it says why", || ask(&of.w, 1, "GET key").contains("-NOREPLICAS fide: "));
    until("the other one leads, or has nobody to lead for", || ask(&of.w, 2, "GET key") == "1");
    order(&of.w, 1, GroupOrder::Join { name: "orders".into() }).unwrap();
    of.is_ready(1);
    of.agree();
}

#[test]
fn writes_are_refused_while_too_few_servers_hold_everything() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    of.kill(1);
    wait_for("h2 leads", || of.leader().filter(|host| *host == 2));
    of.servers[0] = Some(server_with(&of.w, 1, &["min-copies", "2"]));
    of.is_ready(1);
    until("it steps down", || ask(&of.w, 2, "FIDE STEPDOWN") == "+OK");
    until("h1 leads", || ask(&of.w, 1, "SET key 1") == "+OK");
    // A transaction is executed whole, or not at all.
    let mut begun = Client::open(&of.w, 1).unwrap();
    assert_eq!(begun.ask("MULTI").unwrap(), "+OK");
    assert_eq!(begun.ask("SET half 1").unwrap(), "+QUEUED");
    let mut queued = Client::open(&of.w, 1).unwrap();
    assert_eq!(queued.ask("MULTI").unwrap(), "+OK");
    assert_eq!(queued.ask("SET whole 1").unwrap(), "+QUEUED");
    of.w.kill_agent(2);
    until("it refuses writes", || ask(&of.w, 1, "SET key 2").contains("min-copies is 2"));
    let _ = begun.ask("SET half 2").unwrap();
    for client in [&mut begun, &mut queued] {
        let answer = client.ask("EXEC").unwrap();
        assert!(answer.starts_with("-EXECABORT") || answer.starts_with("-NOREPLICAS"), "{answer}");
    }
    assert_eq!(ask(&of.w, 1, "EXISTS half whole"), ":0");
    assert_eq!(ask(&of.w, 1, "GET key").len(), 1, "reads go on");
    assert!(ask(&of.w, 1, "EVAL return 0").starts_with("-NOREPLICAS"), "a script may write");
    // What is queued while they are refused voids the whole, also if they are taken again before its end.
    let mut first = Client::open(&of.w, 1).unwrap();
    assert_eq!(first.ask("MULTI").unwrap(), "+OK");
    assert!(first.ask("SET half 3").unwrap().starts_with("-NOREPLICAS"));
    assert!(ask(&of.w, 1, "CONFIG SET min-replicas-to-write 0").starts_with("-ERR fide"));
    of.w.start(2);
    until("it takes writes again", || ask(&of.w, 1, "SET key 3") == "+OK");
    assert_eq!(first.ask("SET half 4").unwrap(), "+QUEUED");
    assert!(first.ask("EXEC").unwrap().starts_with("-EXECABORT"));
    assert_eq!(ask(&of.w, 1, "EXISTS half"), ":0");
}

/// What was refused of a transaction by a server that did not lead is not missing from it when it does.
#[test]
fn a_transaction_that_was_refused_in_part_is_not_executed_by_the_next_leader() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    of.agree();
    let (mut half, mut other) = (Client::open(&of.w, 2).unwrap(), Client::open(&of.w, 2).unwrap());
    assert_eq!(half.ask("MULTI").unwrap(), "+OK");
    assert_eq!(half.ask("GET key").unwrap(), "+QUEUED");
    assert!(other.ask("GET key").unwrap().starts_with("-READONLY"));
    of.kill(1);
    wait_for("h2 leads", || of.leader().filter(|host| *host == 2));
    assert!(half.ask("SET half 1").and_then(|_| half.ask("EXEC")).is_err(), "it is cut off");
    assert_eq!(other.ask("EXISTS half").unwrap(), ":0", "others are not");
}

/// Each write is on disk before it is answered.
const LOG: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Three servers that keep a log of every write; who has all data is written down on each host.
fn with_logs() -> Option<Servers> {
    let of = Servers::up_with(3, "huc", "trust-contract", &LOG)?;
    until("all hold everything", || of.status(1).contains("copies :3"));
    until("it is written down", || (1..=3).all(|host| written_down(&of, host) == (3, true)));
    Some(of)
}

/// How many servers had all data last, as a server's file says, and whether its log is said to have them.
fn written_down(of: &Servers, host: u16) -> (usize, bool) {
    let file = of.w.lab.host_dir(host).join("redis/fide-orders.generation");
    let text = fs::read_to_string(file).unwrap_or_default();
    (text.lines().skip(2).count(), text.lines().nth(1).is_some_and(|line| line.ends_with(" log")))
}

fn kill_all_servers(of: &mut Servers) {
    let hosts: Vec<u16> = (1..=3).filter(|host| of.servers[usize::from(*host) - 1].is_some()).collect();
    // None notices that another one is gone.
    hosts.iter().for_each(|host| kill(of.servers[usize::from(*host) - 1].as_ref().unwrap().pid().cast_signed(), libc::SIGSTOP));
    hosts.iter().for_each(|host| of.kill(*host));
}

/// No power anywhere: servers and agents, which are back.
fn no_power(of: &mut Servers) {
    (1..=3).for_each(|host| of.w.signal_agent(host, libc::SIGSTOP));
    kill_all_servers(of);
    (1..=3).for_each(|host| of.w.kill_agent(host));
    (1..=3).for_each(|host| of.w.start(host));
    of.w.all_alive();
}

fn begin_with_log(of: &mut Servers, host: u16, more: &[&str]) {
    of.servers[usize::from(host) - 1] = Some(server(&of.w, host, &[&LOG[..], more].concat()));
}

/// All servers end, and their agents live: the group's log is there, and nobody is asked.
#[test]
fn servers_that_all_end_beside_living_agents_go_on_with_their_logs() {
    let Some(mut of) = with_logs() else { return };
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    of.agree();
    kill_all_servers(&mut of);
    (1..=2).for_each(|host| begin_with_log(&mut of, host, &[]));
    let third = format!("{}:{PORT} is missing", of.w.lab.ipv4(3, 0));
    until("they say for whom they wait", || (1..=2).all(|host| of.status(host).contains(&third)));
    begin_with_log(&mut of, 3, &[]);
    (1..=3).for_each(|host| of.is_ready(host));
    let leader = of.leader().unwrap();
    assert_eq!(ask(&of.w, leader, "GET key"), "1");
    assert_eq!(ask(&of.w, leader, "SET key 2"), "+OK");
    assert_eq!(of.agree(), of.agree());
}

/// A server that was given all data writes its log anew. Until that is done its disk has what it had
/// before, and it is not taken for one that has all data, whether it has led since or not.
#[test]
fn a_log_of_former_data_is_not_taken_for_all() {
    let Some(mut of) = with_logs() else { return };
    for n in 0..20 {
        assert_eq!(ask(&of.w, 1, &format!("SET old{n} 1")), "+OK");
    }
    of.agree();
    // Its log takes minutes from now on.
    of.kill(3);
    begin_with_log(&mut of, 3, &["--rdb-key-save-delay", "20000000"]);
    of.is_ready(3);
    until("it is a copy again", || of.status(1).contains("copies :3"));
    until("it is written down", || written_down(&of, 3) == (3, false));
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    of.agree();
    while of.leader() != Some(3) {
        let leader = wait_for("a server leads", || of.leader());
        if leader != 3 {
            let _ = ask(&of.w, leader, "FIDE STEPDOWN");
            wait_for("another one leads", || of.leader().filter(|host| *host != leader));
        }
    }
    let address = format!("{}:{PORT}", of.w.lab.ipv4(3, 0));
    until("that it leads is written down", || {
        let file = of.w.lab.host_dir(3).join("redis/fide-orders.generation");
        fs::read_to_string(file).unwrap_or_default().lines().nth(2) == Some(&address)
    });
    assert_eq!(ask(&of.w, 3, "SET key 2"), "+OK");
    no_power(&mut of);
    (1..=3).for_each(|host| begin_with_log(&mut of, host, &[]));
    until("a person is asked", || (1..=3).all(|host| of.status(host).contains("how far its data go")));
    assert_eq!(of.leader(), None);
}

/// An operator has let a server lead without the others: they do not take its data for former ones
/// when all begin anew without it.
#[test]
fn later_data_of_a_former_group_are_dropped_only_on_an_operators_word() {
    let Some(mut of) = with_logs() else { return };
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    of.agree();
    of.kill(3);
    until("two are left", || (1..=2).all(|host| written_down(&of, host) == (2, true)));
    assert_eq!(ask(&of.w, 1, "SET key 2"), "+OK");
    kill_all_servers(&mut of);
    begin_with_log(&mut of, 3, &[]);
    until("it waits", || of.status(3).contains("FIDE LEAD FORCE"));
    assert_eq!(ask(&of.w, 3, "FIDE LEAD FORCE"), "+OK");
    of.is_ready(3);
    assert_eq!(ask(&of.w, 3, "SET key 3"), "+OK");
    until("it is written down", || written_down(&of, 3) == (1, true));
    no_power(&mut of);
    (1..=2).for_each(|host| begin_with_log(&mut of, host, &[]));
    (1..=2).for_each(|host| of.is_ready(host));
    assert_eq!(ask(&of.w, of.leader().unwrap(), "GET key"), "2");
    begin_with_log(&mut of, 3, &[]);
    until("it keeps its data", || of.status(3).contains("later data"));
    assert_eq!(ask(&of.w, 3, "FIDE LEAD FORCE DISCARD"), "+OK");
    (1..=3).for_each(|host| of.is_ready(host));
    assert_eq!(ask(&of.w, 3, "GET key"), "3");
}

/// An empty server is there before those that have the data of the group before.
#[test]
fn an_empty_server_does_not_begin_a_group_anew_before_the_others_have_spoken() {
    let Some(mut of) = with_logs() else { return };
    assert_eq!(ask(&of.w, 1, "SET key 1"), "+OK");
    of.agree();
    no_power(&mut of);
    fs::remove_dir_all(of.w.lab.host_dir(3).join("redis")).unwrap();
    begin_with_log(&mut of, 3, &[]);
    until("it waits for the others", || of.status(3).contains("start the servers there"));
    (1..=2).for_each(|host| begin_with_log(&mut of, host, &[]));
    (1..=2).for_each(|host| until("they say for whom they wait", || of.status(host).contains("FIDE LEAD FORCE")));
    let refused = ask(&of.w, 3, "FIDE LEAD FORCE");
    assert!(refused.contains("has 1 keys") && refused.contains("this server has 0 keys"), "{refused}");
    assert_eq!(ask(&of.w, 1, "FIDE LEAD FORCE"), "+OK");
    (1..=3).for_each(|host| of.is_ready(host));
    assert_eq!(ask(&of.w, 1, "GET key"), "1");
}

/// Who has all data cannot be written down: what the file said before is not believed.
#[test]
fn what_is_not_so_any_more_is_not_left_on_disk() {
    let Some(mut of) = with_logs() else { return };
    let in_the_way = of.w.lab.host_dir(1).join("redis/fide-orders.generation.new");
    fs::create_dir(&in_the_way).unwrap();
    of.kill(3);
    until("nothing is written down", || written_down(&of, 1) == (0, false));
    until("it is told", || of.log(1).contains("it is tried again"));
    fs::remove_dir(&in_the_way).unwrap();
    until("it is written down", || written_down(&of, 1) == (2, true));
}

/// Two copies in one rack are one: `min-zones`, by the zones of the agents' configurations. Prometheus reads what the server knows of it.
#[test]
fn copies_in_one_zone_are_one_copy_and_metrics_say_how_many_there_are() {
    if !available() {
        return;
    }
    let zone = |host| format!("zone = \"rack{}\"", if host == 3 { 2 } else { 1 });
    let Some(w) = Setup::hosts(3).extra(zone).up() else { return };
    let mut of = Servers { w, servers: Vec::new(), _pins: None, witnesses: None, of_the_module: Vec::new() };
    of.begin(3, ("huc", "trust-contract"), &[], &["min-zones", "2", "metrics", "127.0.0.1:9434"]);
    let metrics = |w: &World, host| {
        let mut stream = w.lab.in_host(host, || TcpStream::connect(("127.0.0.1", 9434))).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    };
    let says = |w: &World, host, name: &str, value| {
        let line = format!("fide_redis_{name}{{group=\"orders\"}} {value}");
        until(&format!("h{host} says {line}: {}", metrics(w, host)), || metrics(w, host).lines().any(|other| other == line));
    };
    until("it takes writes with copies in two racks", || ask(&of.w, 1, "SET key 1") == "+OK");
    for (name, value) in [("leads", 1), ("copies", 3), ("zones", 2), ("refuses_writes", 0)] {
        says(&of.w, 1, name, value);
    }
    assert!(of.status(1).contains("zone=rack2") && of.status(1).contains("zone rack1"), "{}", of.status(1));
    let lag = format!("fide_redis_server_lag_bytes{{group=\"orders\",server=\"{}:{PORT}\",zone=\"rack2\"}}", of.w.lab.ipv4(3, 0));
    assert!(metrics(&of.w, 1).contains(&lag), "{lag}: {}", metrics(&of.w, 1));
    of.kill(3);
    until("it refuses writes", || ask(&of.w, 1, "SET key 2").contains("are in 1 zones, and min-zones is 2"));
    for (name, value) in [("copies", 2), ("zones", 1), ("refuses_writes", 1)] {
        says(&of.w, 1, name, value);
    }
    says(&of.w, 2, "leads", 0);
    of.restart(3);
    until("it takes writes again", || ask(&of.w, 1, "SET key 3") == "+OK");
}

/// An operator's word does not empty a group that is well.
#[test]
fn no_server_leads_by_force_that_has_not_everything_while_another_does() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    assert_eq!(ask(&of.w, 1, "SET key value"), "+OK");
    assert_eq!(ask(&of.w, 1, "SET other value"), "+OK");
    of.agree();
    // Whoever tells the leader to lead disturbs nobody: not even a client that waits.
    let term = || of.status(1).split_once("term ").map(|(_, rest)| rest.split(' ').next().map(str::to_string));
    let before = term();
    let (mut waits, mut client) = (Client::open(&of.w, 1).unwrap(), Client::open(&of.w, 1).unwrap());
    waits.say(&["BLPOP", "list", "0"]).unwrap();
    for force in ["FIDE LEAD FORCE", "FIDE LEAD FORCE DISCARD"] {
        assert_eq!(client.ask(force).unwrap(), "+OK");
    }
    for n in 1..=100 {
        assert_eq!(client.ask(&format!("RPUSH other-list {n}")).unwrap(), format!(":{n}"));
    }
    assert_eq!(client.ask("RPUSH list a").unwrap(), ":1");
    assert_eq!(waits.hear().unwrap(), "[list a]");
    assert_eq!(term(), before);
    of.kill(2);
    // It gets no data: the leader wants a password.
    assert_eq!(client.ask("CONFIG SET requirepass secret").unwrap(), "+OK");
    of.servers[1] = Some(server(&of.w, 2, &[]));
    until("it has none", || of.status(2).contains("NOAUTH"));
    let refused = ask(&of.w, 2, "FIDE LEAD FORCE");
    assert!(refused.starts_with("-ERR fide: ") && refused.contains("and this server has 0: FIDE"), "{refused}");
    assert_eq!(ask(&of.w, 2, "CONFIG SET masterauth secret"), "+OK");
    assert!(client.ask("FIDE STATUS").unwrap().contains("this server leads"));
    // Who has everything may lead: nothing is lost.
    of.is_ready(2);
    assert_eq!(ask(&of.w, 2, "FIDE LEAD FORCE"), "+OK");
    until("h2 leads", || ask(&of.w, 2, "GET key") == "value");
    until("the former one follows", || {
        client.ask("FIDE STATUS").is_err() || client.ask("FIDE STATUS").unwrap().contains("follows")
    });
}

/// The leading program replaces itself, so that no process ends: nobody follows itself, and another leads.
#[test]
fn a_leader_that_replaces_itself_by_exec_lets_another_lead() {
    let Some(of) = Servers::up(3, "huc") else { return };
    let mut next = 1;
    for round in 1..=3 {
        let leader = next;
        until("all hold everything", || of.status(leader).contains("copies :3"));
        assert_eq!(ask(&of.w, leader, &format!("SET key {round}")), "+OK");
        let since = Instant::now();
        let _ = ask(&of.w, leader, "DEBUG RESTART");
        next = wait_for("another leads", || (1..=3).find(|host| *host != leader && ask(&of.w, *host, "SET probe 1") == "+OK"));
        println!("round {round}: h{next} leads after {:?}", since.elapsed());
        assert_eq!(ask(&of.w, next, "GET key"), round.to_string());
        of.is_ready(leader);
    }
    of.agree();
}

/// Why a server gets no data is known where people look: at both servers, and in the log.
#[test]
fn a_password_that_was_changed_is_said_on_both_sides_and_used_once_it_is_right() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    let mut client = Client::open(&of.w, 1).unwrap();
    assert_eq!(client.ask("CONFIG SET requirepass secret").unwrap(), "+OK");
    assert_eq!(client.ask("SET key value").unwrap(), "+OK");
    of.kill(2);
    of.servers[1] = Some(server(&of.w, 2, &[]));
    until("the follower says it", || of.status(2).contains("NOAUTH"));
    until("the leader says it", || {
        client.ask("FIDE STATUS").unwrap().contains("trouble=this server does not get the leader's data")
    });
    assert!(client.ask("INFO fide").unwrap().contains("NOAUTH"));
    assert_eq!(ask(&of.w, 2, "CONFIG SET masterauth secret"), "+OK");
    of.is_ready(2);
    until("nothing is wrong any more", || !client.ask("FIDE STATUS").unwrap().contains("trouble="));
    // The next leader, which has no password, and the former one, which shows one.
    of.kill(1);
    until("the other one leads", || ask(&of.w, 2, "GET key") == "value");
}

/// Whatever reads, writes or is sent by the leader is refused elsewhere, by what the command is and not by its name.
#[test]
fn no_command_passes_a_server_that_does_not_lead() {
    let Some(mut of) = Servers::up_with(2, "huc", "trust-contract", &["--rename-command", "GET", "fetch"]) else { return };
    let mut client = Client::open(&of.w, 1).unwrap();
    assert_eq!(client.ask("SET key value").unwrap(), "+OK");
    assert_eq!(client.ask("fetch key").unwrap(), "value");
    for command in [
        "fetch key",
        "PUBLISH c m",
        "SPUBLISH c m",
        "PFCOUNT h",
        "EVAL return(1) 0",
        "WATCH key",
        "SET key 2",
        "OBJECT ENCODING key",
    ] {
        let refused = ask(&of.w, 2, command);
        assert!(refused.starts_with("-READONLY"), "{command}: {refused}");
    }
    for setting in ["replica-read-only no", "maxclients 100 replica-read-only no", "SLAVE-READ-ONLY 0"] {
        let refused = ask(&of.w, 2, &format!("CONFIG SET {setting}"));
        assert!(refused.starts_with("-ERR fide"), "{setting}: {refused}");
    }
    assert_eq!(ask(&of.w, 2, "CONFIG SET maxclients 100"), "+OK");
    // What only seems to read is done everywhere.
    for n in 0..16 {
        client.ask(&format!("PFADD h {n} a{n} b{n}")).unwrap();
        client.ask("PFCOUNT h").unwrap();
    }
    of.agree();
    // Proxies ask for the role.
    assert!(ask(&of.w, 1, "INFO replication").contains("role:master"));
    assert!(ask(&of.w, 2, "INFO replication").contains("role:slave"));
    order(&of.w, 1, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    until("who waits is no primary", || {
        let role = ask(&of.w, 1, "INFO replication");
        role.contains("role:slave") && ask(&of.w, 1, "fetch key").contains("-NOREPLICAS")
    });
    until("it is not in sync, either", || of.status(1).contains("in-sync :0"));
    of.servers.clear();
}

/// The server of h1 has written this, and that it ends.
fn ends_with(w: &World, says: &str) {
    let path = w.lab.host_dir(1).join("redis/log");
    until("it says why it ends", || {
        let log = fs::read_to_string(&path).unwrap();
        log.find(says).is_some_and(|at| log[at..].contains("Can't load module from"))
    });
    fs::write(path, "").unwrap();
}

/// A server that the module cannot serve says why in one sentence, and does not start.
#[test]
fn a_module_that_cannot_work_says_what_is_in_its_way() {
    let Some(mut of) = Servers::up(2, "huc") else { return };
    of.kill(1);
    let module = std::env::current_exe().unwrap().with_file_name("libfide_redis.so");
    let module = module.to_str().unwrap();
    for (settings, says) in [
        (vec!["--rename-command", "CONFIG", ""], "renamed or removed CONFIG"),
        (vec!["--rename-command", "PSYNC", "other"], "renamed or removed PSYNC"),
        (vec!["--loadmodule", module, "group", "orders"], "is loaded already"),
    ] {
        let _failed = server(&of.w, 1, &settings);
        ends_with(&of.w, says);
    }
    let _failed = server_with(&of.w, 1, &["min-members", "2"]);
    ends_with(&of.w, "min-copies 2 counts those");
}
