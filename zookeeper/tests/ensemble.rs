//! A real ensemble of two ZooKeeper servers with the shipped hook, in a lab: one is killed and the other serves on; a partition leaves one; one that served
//! alone comes back on an empty disk, and on an older one.

use fide_client::Connection;
use fide_client::group::Stage;
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
    hooks: [Option<Running>; 2],
    agents: Vec<Option<Running>>,
    written: u32,
    lab: Lab,
}

impl Ensemble {
    fn up() -> Self {
        let lab = Lab::up(&LabSpec { hosts: 3, ephemeral: true, ..LabSpec::default() }).unwrap();
        // The third host has an agent only: the witness.
        let agents = lab.hosts().map(|host| Some(agent(&lab, host))).collect();
        let hooks = [1, 2].map(|host| Some(hook(&lab, host)));
        let mut of = Self { servers: [None, None], hooks, agents, written: 0, lab };
        for host in of.lab.hosts() {
            wait_for("the group runs", || of.runs_group(host).then_some(()));
        }
        [1, 2].into_iter().for_each(|host| of.start(host));
        of.is_in_step();
        of
    }

    fn runs_group(&self, host: u16) -> bool {
        let Ok(connection) = Connection::open(Some(&socket(&self.lab, host))) else { return false };
        let Ok(Reply::Groups { groups }) = connection.request(&Request::Group { order: GroupOrder::Status }).map(|r| r.reply)
        else {
            return false;
        };
        groups.iter().any(|group| group.name == "zk" && group.stage == Stage::Running && group.members.len() == 3)
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
        let said =
            [1, 2].map(|host| fs::read_to_string(self.oracle_path(host)).unwrap_or_default().chars().take(1).collect::<String>());
        assert_ne!(said, ["1", "1"]);
        said.concat()
    }

    fn command(&self, host: u16, name: &str) -> Command {
        let mut command = self.lab.command(host, env!("CARGO_BIN_EXE_fide-zookeeper")).unwrap();
        command.args([name, "--group", "zk", "--socket"]).arg(socket(&self.lab, host));
        command
    }

    fn status(&self, host: u16) -> Option<serde_json::Value> {
        let out = self.command(host, "status").arg("--json").output().unwrap();
        serde_json::from_slice(&out.stdout).ok()
    }

    /// Both servers serve, and neither would alone.
    fn is_in_step(&self) {
        wait_for("both servers are in step", || (self.status(1)?["mode"] == "both" && self.oracles() == "00").then_some(()));
    }

    /// What the first host's server wrote alone is missing: said, and nobody is let serve alone.
    fn is_missing(&self, from: u64) {
        wait_for("the group says what is missing", || {
            let said = self.status(2)?;
            let text = said["missing"].as_str()?.to_owned();
            assert!(text.contains("h1") && text.contains("give-up") && text.contains(&format!("{from:#x}")), "{text}");
            Some(())
        });
        wait_for("the hook's log says it", || {
            let log = fs::read_to_string(self.lab.host_dir(1).join("hook.log")).ok()?;
            log.contains("lacks what it wrote alone").then_some(())
        });
        assert_eq!(self.oracles(), "00");
        let data = self.data(1);
        let out = self.command(1, "check").arg("--data").arg(&data).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// The first host's server serves alone: from which transaction on.
    fn alone(&mut self) -> u64 {
        (0..20).for_each(|_| self.write(1).unwrap());
        self.kill(2);
        self.serves_on(1, Instant::now());
        let said = self.status(1).unwrap();
        assert!(said["disks"]["h1"]["id"].as_str().is_some_and(|id| !id.is_empty()), "{said}");
        said["from_zxid"].as_u64().unwrap()
    }

    /// Everything that was answered is noted: how far the first host's disk goes.
    fn all_is_noted(&self) {
        let said = self.srvr(1).unwrap();
        let zxid = said.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).unwrap();
        let zxid = u64::from_str_radix(zxid, 16).unwrap();
        wait_for("the disk's state is noted", || {
            let noted = self.status(1)?["disks"]["h1"]["zxid"].as_u64()?;
            (noted >= zxid).then_some(())
        });
    }

    fn data(&self, host: u16) -> PathBuf {
        self.lab.host_dir(host).join("zookeeper/data")
    }

    fn srvr(&self, host: u16) -> io::Result<String> {
        let asked = self.lab.in_host(host, || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
            stream.write_all(b"srvr")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        asked.unwrap()
    }

    fn leads(&self, host: u16) -> bool {
        self.srvr(host).is_ok_and(|text| text.contains("Mode: leader"))
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
        "cluster = \"zk\"\ngroup = [{{ name = \"zk\", hosts = [\"h1\", \"h2\", \"h3\"], durable = true }}]\nnode = \"h{host}\"\nheartbeat = \"2ms\"\nstate = \"{at}/state.json\"\nsocket = {{ path = \"{at}/fided.sock\" }}\n\
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
    command.arg("--data").arg(lab.host_dir(host).join("zookeeper/data"));
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

#[test]
fn a_server_that_served_alone_and_comes_back_on_an_empty_disk_is_not_let_serve() {
    if let Some(why) = missing() {
        println!("SKIPPED: {why}");
        return;
    }
    let mut of = Ensemble::up();
    let from = of.alone();
    (0..100).for_each(|_| of.write(1).unwrap());
    // The host is made anew: agent, hook and server know nothing.
    of.kill(1);
    (of.hooks[0], of.agents[0]) = (None, None);
    for file in fs::read_dir(of.lab.host_dir(1)).unwrap().map(|file| file.unwrap().path()) {
        let is_log = file.extension().is_some_and(|end| end == "log");
        match file.is_dir() {
            true => fs::remove_dir_all(&file).unwrap(),
            false if is_log => {}
            false => fs::remove_file(&file).unwrap(),
        }
    }
    of.agents[0] = Some(agent(&of.lab, 1));
    of.hooks[0] = Some(hook(&of.lab, 1));
    wait_for("the host is a member again", || of.runs_group(1).then_some(()));
    of.start(1);
    of.is_missing(from);
    // The other server comes, too: ZooKeeper makes a majority of the two, on what is older.
    of.start(2);
    let leader = of.leader();
    wait_for("the hooks have seen it", || (of.status(2)?["follower"] == "h2").then_some(()));
    assert_eq!(leader, 2, "who has more leads");
    // Sleep: longer than hooks take to have a write committed and to say so.
    std::thread::sleep(Duration::from_secs(4));
    let said = of.status(1).unwrap();
    assert_eq!((&said["mode"]["alone"], of.oracles()), (&"h1".into(), "00".into()), "{said}");
    assert!(said["missing"].is_string(), "{said}");
    // A person gives up what was written alone.
    let out = of.command(2, "give-up").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    of.is_in_step();
    of.written = 20;
    of.all_is_there();
}

#[test]
fn a_server_that_served_alone_and_comes_back_on_an_older_disk_is_not_let_serve_until_it_has_the_right_one() {
    if let Some(why) = missing() {
        println!("SKIPPED: {why}");
        return;
    }
    let mut of = Ensemble::up();
    let from = of.alone();
    of.all_is_noted();
    let copy = of.lab.host_dir(1).join("copy");
    let take = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
        assert!(copied.success());
    };
    take(&of.data(1), &copy);
    (0..100).for_each(|_| of.write(1).unwrap());
    of.all_is_noted();
    // The older copy is put in its place, under the eyes of its hook.
    let ended = |of: &Ensemble| wait_for("the hook knows of the end", || (of.oracles() == "00").then_some(()));
    of.kill(1);
    ended(&of);
    let right = of.lab.host_dir(1).join("right");
    fs::rename(of.data(1), &right).unwrap();
    take(&copy, &of.data(1));
    of.start(1);
    of.is_missing(from);
    assert!(of.write(1).is_err(), "it serves on what is older");
    // The right one serves on.
    of.kill(1);
    fs::remove_dir_all(of.data(1)).unwrap();
    fs::rename(&right, of.data(1)).unwrap();
    of.start(1);
    of.serves_on(1, Instant::now());
    let out = of.command(1, "check").arg("--data").arg(of.data(1)).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    of.start(2);
    of.is_in_step();
    of.all_is_there();
}
