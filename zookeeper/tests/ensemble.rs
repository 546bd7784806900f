//! A real ensemble of two ZooKeeper servers with the shipped hook, in a lab: one is killed and the other serves on; a partition leaves one.

use fide_client::Connection;
use fide_lab::{Cut, Lab, LabSpec};
use fide_wire::control::{GroupOrder, Reply, Request};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long, because the machine may be busy with other things; nothing waits longer than it must.
const PATIENCE: Duration = Duration::from_secs(90);
const PORT: u16 = 2181;
const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const SYNC: i32 = 9;

/// Why the test cannot run, if it cannot.
fn missing() -> Option<String> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("a lab needs root".into());
    }
    let has_java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !has_java || !Path::new("/usr/share/java/zookeeper.jar").exists() {
        return Some("there is no ZooKeeper: apt-get install libzookeeper-java default-jre-headless".into());
    }
    let fided = fided();
    (!fided.exists()).then(|| format!("{} is not built: cargo build -p fide-agent", fided.display()))
}

fn fided() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_fide-zookeeper")).with_file_name("fided")
}

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(2));
    }
}

// ---- a client of ZooKeeper, by its wire protocol ------------------------------------------------------------------------

struct Zk(TcpStream);

fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u32).to_be_bytes()[..], &body].concat()
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    framed(&[bytes])
}

impl Zk {
    fn open(lab: &Lab, host: u16) -> io::Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, PORT).into();
        let stream = lab.in_host(host, || TcpStream::connect_timeout(&address, Duration::from_secs(1))).unwrap()?;
        stream.set_read_timeout(Some(Duration::from_secs(4)))?;
        stream.set_nodelay(true)?;
        let mut zk = Self(stream);
        zk.0.write_all(&framed(&[&[0; 12], &30_000i32.to_be_bytes(), &[0; 8], &counted(&[0; 16]), &[0]]))?;
        let answer = zk.read()?;
        if answer.get(8..16).is_none_or(|session| session == [0; 8]) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(zk)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut record = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut record)?;
        Ok(record)
    }

    fn ask(&mut self, kind: i32, body: &[&[u8]]) -> io::Result<i32> {
        self.0.write_all(&framed(&[&1i32.to_be_bytes(), &kind.to_be_bytes(), &body.concat()]))?;
        let reply = self.read()?;
        Ok(i32::from_be_bytes(reply[12..16].try_into().unwrap()))
    }

    /// A node that stays.
    fn create(&mut self, path: &str) -> io::Result<()> {
        let acl = [&1i32.to_be_bytes()[..], &31i32.to_be_bytes(), &counted(b"world"), &counted(b"anyone")].concat();
        match self.ask(CREATE, &[&counted(path.as_bytes()), &counted(b""), &acl, &0i32.to_be_bytes()])? {
            0 => Ok(()),
            error => Err(io::Error::other(format!("error {error}"))),
        }
    }

    fn exists(&mut self, path: &str) -> io::Result<bool> {
        Ok(self.ask(EXISTS, &[&counted(path.as_bytes()), &[0]])? == 0)
    }
}

// ---- what runs ----------------------------------------------------------------------------------------------------------

/// Ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Ensemble {
    servers: [Option<Running>; 2],
    _hooks: Vec<Running>,
    _agents: Vec<Running>,
    written: u32,
    lab: Lab,
}

impl Ensemble {
    fn up() -> Self {
        let lab = Lab::up(&LabSpec { hosts: 3, ephemeral: true, ..LabSpec::default() }).unwrap();
        let agents = lab.hosts().map(|host| agent(&lab, host)).collect();
        for host in lab.hosts() {
            wait_for("all agents see each other", || {
                let connection = Connection::open(Some(&socket(&lab, host))).ok()?;
                let Ok(Reply::Status(status)) = connection.request(&Request::Status).map(|r| r.reply) else { return None };
                let well =
                    status.hosts.iter().filter(|h| h.state == "alive" && h.paths.iter().all(|p| p.up && p.last_number > 0));
                (well.count() == 2).then_some(())
            });
        }
        // The third host has an agent only: the witness.
        let hosts = ["h1", "h2", "h3"].map(str::to_owned).to_vec();
        let (engine, policy) = ("huc".into(), "trust-contract".into());
        let order = GroupOrder::Create { name: "zk".into(), engine, policy, hosts, durable: false, fresh: false };
        Connection::open(Some(&socket(&lab, 1))).unwrap().request(&Request::Group { order }).unwrap();
        let hooks = [1, 2].map(|host| hook(&lab, host)).into();
        let mut of = Self { servers: [None, None], _hooks: hooks, _agents: agents, written: 0, lab };
        [1, 2].into_iter().for_each(|host| of.start(host));
        of.is_in_step();
        of
    }

    fn start(&mut self, host: u16) {
        let dir = self.lab.host_dir(host).join("zookeeper");
        fs::create_dir_all(dir.join("data")).unwrap();
        fs::write(dir.join("data/myid"), host.to_string()).unwrap();
        let [one, two] = [1, 2].map(|host| self.lab.ipv4(host, 0));
        let config = format!(
            "tickTime=200\ninitLimit=50\nsyncLimit=5\ndataDir={}\nclientPort={PORT}\nadmin.enableServer=false\noraclePath={}\n\
             server.1={one}:2888:3888\nserver.2={two}:2888:3888\n",
            dir.join("data").display(),
            self.oracle_path(host).display()
        );
        fs::write(dir.join("zoo.cfg"), config).unwrap();
        let log = log(&dir.join("log"));
        let mut command = self.lab.command(host, "java").unwrap();
        command.current_dir(&dir).args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.preAllocSize=1024", "-cp"]);
        command.arg("/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar");
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(dir.join("zoo.cfg"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.servers[usize::from(host) - 1] = Some(Running(command.spawn().unwrap()));
    }

    fn oracle_path(&self, host: u16) -> PathBuf {
        self.lab.host_dir(host).join("oracle")
    }

    /// What the oracles say. Never both 1.
    fn oracles(&self) -> String {
        let said = [1, 2].map(|host| fs::read_to_string(self.oracle_path(host)).unwrap_or_default().trim().to_owned());
        assert_ne!(said, ["1", "1"]);
        said.concat()
    }

    /// Both servers serve, and neither would alone.
    fn is_in_step(&self) {
        wait_for("both servers are in step", || {
            let mut status = self.lab.command(1, env!("CARGO_BIN_EXE_fide-zookeeper")).unwrap();
            let out = status.args(["status", "--group", "zk", "--json", "--socket"]).arg(socket(&self.lab, 1)).output().unwrap();
            let said: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
            (said["mode"] == "both" && self.oracles() == "00").then_some(())
        });
    }

    fn leads(&self, host: u16) -> bool {
        let asked = self.lab.in_host(host, || -> io::Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
            stream.write_all(b"srvr")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        asked.unwrap().is_ok_and(|text| text.contains("Mode: leader"))
    }

    fn leader(&self) -> u16 {
        wait_for("a server leads", || [1, 2].into_iter().find(|host| self.leads(*host)))
    }

    /// A write, by a new session of this host's server.
    fn write(&mut self, host: u16) -> io::Result<()> {
        let path = format!("/node-{}", self.written + 1);
        match Zk::open(&self.lab, host)?.create(&path) {
            // It was committed by an attempt that had no answer.
            Err(e) if e.to_string() == "error -110" => {}
            other => other?,
        }
        self.written += 1;
        Ok(())
    }

    /// Everything that was answered is there, also on the server that was away.
    fn all_is_there(&self) {
        for host in [1, 2] {
            let mut zk = wait_for("a session", || Zk::open(&self.lab, host).ok());
            zk.ask(SYNC, &[&counted(b"/")]).unwrap();
            for n in 1..=self.written {
                assert!(zk.exists(&format!("/node-{n}")).unwrap(), "/node-{n} was answered and is not there on h{host}");
            }
        }
    }

    fn kill(&mut self, host: u16) {
        drop(self.servers[usize::from(host) - 1].take());
    }

    fn serves_on(&mut self, host: u16, since: Instant) {
        wait_for("the other one serves on", || self.write(host).ok());
        println!("h{host} has taken a write {:?} after it", since.elapsed());
        assert_eq!(self.oracles(), if host == 1 { "10" } else { "01" });
        (0..20).for_each(|_| self.write(host).unwrap());
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in self.lab.hosts() {
                for name in ["hook.log", "zookeeper/log", "log"] {
                    let text = fs::read_to_string(self.lab.host_dir(host).join(name)).unwrap_or_default();
                    let lines: Vec<&str> = text.lines().collect();
                    eprintln!("---- h{host} {name}\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
                }
            }
        }
    }
}

fn log(path: &Path) -> File {
    File::options().create(true).append(true).open(path).unwrap()
}

fn socket(lab: &Lab, host: u16) -> PathBuf {
    lab.host_dir(host).join("fided.sock")
}

fn agent(lab: &Lab, host: u16) -> Running {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = lab.host_dir(host);
    let config = dir.join("fide.toml");
    let at = dir.display();
    let text = format!(
        "cluster = \"zk\"\nnode = \"h{host}\"\nheartbeat = \"2ms\"\nstate = \"{at}/state.json\"\nsocket = {{ path = \"{at}/fided.sock\" }}\n\
         history = {{ path = \"{at}/history.jsonl\" }}\nmetrics = {{ listen = \"off\" }}\nends = {{ pins = \"off\" }}\npath = [{{ interface = \"net0\" }}, {{ interface = \"net1\" }}]\n"
    );
    fs::write(&config, text).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = lab.command(host, fided()).unwrap();
    let log = log(&dir.join("log"));
    command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

fn hook(lab: &Lab, host: u16) -> Running {
    let mut command = lab.command(host, env!("CARGO_BIN_EXE_fide-zookeeper")).unwrap();
    command
        .args(["run", "--group", "zk", "--peer", &format!("h{}", 3 - host), "--oracle"])
        .arg(lab.host_dir(host).join("oracle"));
    let log = log(&lab.host_dir(host).join("hook.log"));
    command.arg("--socket").arg(socket(lab, host)).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

#[test]
fn one_of_two_servers_serves_on_when_the_other_is_killed_or_cut_off() {
    if let Some(why) = missing() {
        println!("SKIPPED: {why}");
        return;
    }
    let mut of = Ensemble::up();
    (0..20).for_each(|_| of.write(1).unwrap());
    for round in 0..2 {
        let leader = of.leader();
        // The leader first, then the follower.
        let victim = if round == 0 { leader } else { 3 - leader };
        let since = Instant::now();
        of.kill(victim);
        print!("h{victim}'s server, which {}, is killed: ", if round == 0 { "leads" } else { "follows" });
        of.serves_on(3 - victim, since);
        of.start(victim);
        of.is_in_step();
        of.all_is_there();
    }
    // The leader's host is cut off from both others.
    let victim = of.leader();
    let since = Instant::now();
    (0..2).for_each(|net| of.lab.cut(victim, net, Cut::Silent).unwrap());
    print!("h{victim}, whose server leads, is cut off: ");
    of.serves_on(3 - victim, since);
    for _ in 0..3 {
        let written = of.written;
        assert!(of.write(victim).is_err(), "two servers take writes");
        assert_eq!(of.written, written);
    }
    (0..2).for_each(|net| of.lab.heal(victim, net).unwrap());
    of.is_in_step();
    of.all_is_there();
}
