//! `fide-failover` over real Redis servers: one leads, another one takes over when it crashes, and never two take writes.

use crate::common::{Process, Setup, World, until};
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

fn program() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().with_file_name("fide-failover");
    assert!(program.exists(), "build it first: cargo build -p fide-failover");
    program
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn open(w: &World, host: u16, to: &str) -> Option<Self> {
        let stream = w
            .lab
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
    fn up(hosts: u16, more: &str, setup: impl Fn(Setup) -> Setup) -> Option<Self> {
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
            fs::write(&conf, text).unwrap();
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
        fs::write(&conf, text).unwrap();
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

    fn start_server(&mut self, host: u16) {
        self.servers[usize::from(host) - 1] = Some(self.server(host));
    }

    fn follows(&self, host: u16, leader: u16) -> bool {
        let info = self.ask(host, "INFO replication");
        info.contains(&format!("master_host:{}", self.w.lab.ipv4(leader, 0))) && info.contains("master_link_status:up")
    }
}

#[test]
fn another_server_takes_over_when_the_leader_is_killed_and_the_former_one_follows() {
    let Some(mut of) = Managed::up(3, "", |setup| setup) else { return };
    assert!(of.takes_writes(1) && !of.takes_writes(2) && !of.takes_writes(3));
    for (killed, next) in [(1, 2), (2, 1), (1, 2)] {
        assert_eq!(of.ask(killed, &format!("SET killed {killed}")), "+OK");
        until("all others have it", || (1..=3).filter(|h| *h != killed).all(|h| of.ask(h, "GET killed") == killed.to_string()));
        let since = Instant::now();
        of.kill_server(killed);
        until("another one takes writes", || (1..=3).any(|host| host != killed && of.takes_writes(host)));
        println!("another server took writes {:?} behind the kill", since.elapsed());
        let leader = (1..=3).find(|host| *host != killed && of.takes_writes(*host)).unwrap();
        let _ = next;
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
        if leader != 1 && killed == 1 {
            let (ok, told) = of.say(2, &["history"]);
            assert!(ok && told.contains("orders@h1: ") && told.contains("certain"), "{told}");
        }
        if leader == 3 {
            assert!(of.say(1, &["switch", "h2"]).0);
        }
    }
}
