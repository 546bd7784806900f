//! An etcd of as many members as a group has, one a host, its files in memory.

use super::grpc::Connection;
use super::{ANSWER, etcd};
use crate::rig::{Rig, find_program};
use crate::ui::Ui;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PORT: u16 = 2_579;
/// How long it may take to begin.
const PATIENCE: Duration = Duration::from_secs(40);
const PUT: &str = "/etcdserverpb.KV/Put";

/// One that runs. Dropping it ends it, and removes its files.
#[derive(Debug)]
pub struct Cluster {
    children: Vec<Child>,
    directory: PathBuf,
    /// As it says.
    pub version: String,
    /// The host whose member leads, and one whose member does not.
    pub leader: (u16, SocketAddr),
    /// The other.
    pub follower: Option<(u16, SocketAddr)>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Cluster {
    /// Starts it; without etcd the reason why not.
    ///
    /// # Errors
    /// What is missing, or why it does not serve.
    pub fn start(rig: &Rig, members: u16, ui: &Ui) -> Result<Cluster> {
        let program = find_program("etcd").context("etcd is left out: apt-get install etcd-server brings it")?;
        ui.progress("starting etcd");
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { rig.lab().host_dir(1) };
        let directory = place.join(format!("fide-bench-etcd-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let at = |host: u16| SocketAddr::from((rig.lab().ipv4(host, 0), PORT));
        let peer = |host: u16| format!("http://{}:{}", rig.lab().ipv4(host, 0), PORT + 1);
        let all: Vec<String> = (1..=members).map(|host| format!("h{host}={}", peer(host))).collect();
        let nobody = (0, at(1));
        let mut cluster = Cluster { children: Vec::new(), directory, version: String::new(), leader: nobody, follower: None };
        for host in 1..=members {
            let log = cluster.directory.join(format!("h{host}.log"));
            let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
            let mut command = rig.lab().command(host, &program)?;
            etcd::without_settings(&mut command);
            let (name, client) = (format!("h{host}"), format!("http://{}", at(host)));
            command.args(["--name", &name, "--initial-cluster", &all.join(","), "--initial-cluster-state", "new"]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer(host), "--initial-advertise-peer-urls", &peer(host)]);
            command.arg("--data-dir").arg(cluster.directory.join(&name));
            command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out).process_group(0);
            cluster.children.push(command.spawn().context("cannot run etcd")?);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            ui.check()?;
            let mut leads = Vec::new();
            for host in 1..=members {
                leads.push(rig.lab().in_host(host, || etcd::version(at(host)).and_then(|v| Ok((etcd::leads(at(host))?, v))))?);
            }
            if leads.iter().all(Result::is_ok) && leads.iter().flatten().filter(|(leads, _)| *leads).count() == 1 {
                for (host, (leads, version)) in (1..).zip(leads.into_iter().flatten()) {
                    cluster.version = version;
                    if leads {
                        cluster.leader = (host, at(host));
                    } else {
                        cluster.follower = Some((host, at(host)));
                    }
                }
                return Ok(cluster);
            }
            let ended = cluster.children.iter_mut().any(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if ended || Instant::now() > deadline {
                let log = fs::read_to_string(cluster.directory.join("h1.log")).unwrap_or_default();
                bail!("etcd does not serve; its log ends with: {}", log.lines().last().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A client that puts one key.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    message: Vec<u8>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When no etcd is there.
    pub fn open(address: SocketAddr, size: usize) -> Result<Self> {
        // PutRequest: key is field 1, value field 2, both bytes.
        let mut message = vec![0x0a, 4];
        message.extend_from_slice(b"fide");
        message.push(0x12);
        let mut left = size;
        while left >= 0x80 {
            message.push(left as u8 | 0x80);
            left >>= 7;
        }
        message.push(left as u8);
        message.resize(message.len() + size, 7);
        Ok(Self { connection: Connection::open(address, ANSWER)?, message })
    }

    /// Puts it, and waits until at most so many puts are not acknowledged.
    ///
    /// # Errors
    /// When one is refused.
    pub fn put(&mut self, at_most: usize) -> Result<()> {
        ensure!(self.connection.waiting() <= at_most, "more calls wait than may");
        self.connection.begin(PUT, &self.message)?;
        self.connection.wait(at_most)
    }

    /// Waits until all are.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn finish(&mut self) -> Result<()> {
        self.connection.wait(0)
    }
}
