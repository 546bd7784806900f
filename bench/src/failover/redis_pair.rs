//! Two Redis servers: in the hands of `fide-failover`, with or without an address that moves, of three Sentinels, or of keepalived.

use super::{CLIENT, PAIR, Pair, end, log, manage, spawn};
use crate::redis::{self, ask};
use crate::rig::Rig;
use crate::sys;
use crate::ui::Ui;
use anyhow::{Context as _, Result};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Where Sentinels listen.
const SENTINELS: u16 = 26_412;

enum By {
    Ours,
    /// With its down-after-milliseconds.
    Sentinel(u32),
    Keepalived,
}

pub(super) struct RedisPair {
    by: By,
    port: u16,
    /// What clients write to, if it is not each server at its own.
    address: Option<Ipv4Addr>,
    /// By host.
    servers: Vec<(u16, Child)>,
    managers: Vec<Child>,
}

impl RedisPair {
    /// Servers without managers; `master`: the second one follows the first one from the start.
    fn servers(rig: &Rig, ui: &Ui, (by, port): (By, u16), address: Option<Ipv4Addr>, master: bool) -> Result<Self> {
        let mut pair = Self { by, port, address, servers: Vec::new(), managers: Vec::new() };
        for host in PAIR {
            pair.start(rig, host, (master && host == 2).then_some(1))?;
        }
        for host in PAIR {
            ui.until("a Redis server", || Ok(ask(rig, host, port, "PING").is_ok()))?;
        }
        Ok(pair)
    }

    /// `fide-failover` on both hosts, with one address of the network that moves if `moves`.
    pub(super) fn ours(rig: &Rig, ui: &Ui, program: &Path, moves: bool) -> Result<Self> {
        let (port, name) = if moves { (6413, "address") } else { (6411, "redis") };
        let address = moves.then(|| moving(rig, 201));
        let mut pair = Self::servers(rig, ui, (By::Ours, port), address, false)?;
        let more = address.map_or_else(String::new, |a| format!("[address]\nip = \"{a}/24\"\ninterface = \"net0\"\n"));
        for host in PAIR {
            pair.managers.push(manage(rig, host, program, name, &format!("[redis]\nport = {port}\n{more}"))?);
        }
        super::settled(&pair, rig, ui)?;
        Ok(pair)
    }

    /// Three Sentinels.
    pub(super) fn sentinel(rig: &Rig, ui: &Ui, down_after_ms: u32) -> Result<Self> {
        let mut pair = Self::servers(rig, ui, (By::Sentinel(down_after_ms), 6412), None, true)?;
        let (master, port) = (rig.lab().ipv4(1, 0), pair.port);
        for host in 1..=3 {
            let dir = rig.lab().host_dir(host).join("sentinel");
            let log = log(&dir, "log")?;
            let file = dir.join("sentinel.conf");
            let watch = format!(
                "port {SENTINELS}\nbind 0.0.0.0\nprotected-mode no\nsentinel monitor pair {master} {port} 2\n\
                 sentinel down-after-milliseconds pair {down_after_ms}\nsentinel failover-timeout pair 3000\n"
            );
            fs::write(&file, watch)?;
            let mut command = rig.lab().command(host, "redis-server")?;
            command.current_dir(&dir).arg(&file).arg("--sentinel");
            pair.managers.push(spawn(command, log)?);
        }
        Ok(pair)
    }

    /// keepalived on both hosts: a check of the server each second, which is the most often that it can, and advertisements ten times a second.
    pub(super) fn keepalived(rig: &Rig, ui: &Ui) -> Result<Self> {
        let address = moving(rig, 202);
        let mut pair = Self::servers(rig, ui, (By::Keepalived, 6414), Some(address), false)?;
        let port = pair.port;
        for host in PAIR {
            let dir = rig.lab().host_dir(host).join("keepalived");
            let log = log(&dir, "log")?;
            let file = dir.join("keepalived.conf");
            let (own, other) = (rig.lab().ipv4(host, 0), rig.lab().ipv4(3 - host, 0));
            let cli = format!("/usr/bin/redis-cli -p {port}");
            // Different priorities: two that are alike and start together would both be masters for a moment.
            let priority = 255 - host;
            let text = format!(
                "global_defs {{\n  router_id h{host}\n  script_user root\n  enable_script_security\n  vrrp_garp_master_repeat 1\n}}\n\
                 vrrp_script server {{\n  script \"{cli} PING\"\n  interval 1\n  timeout 1\n  fall 1\n  rise 1\n}}\n\
                 vrrp_instance pair {{\n  state BACKUP\n  nopreempt\n  interface net0\n  virtual_router_id 51\n  version 3\n  priority {priority}\n  advert_int 0.1\n  \
                 unicast_src_ip {own}\n  unicast_peer {{ {other} }}\n  virtual_ipaddress {{ {address}/24 }}\n  track_script {{ server }}\n  \
                 notify_master \"{cli} REPLICAOF NO ONE\"\n  notify_backup \"{cli} REPLICAOF {other} {port}\"\n}}\n"
            );
            fs::write(&file, text)?;
            let mut command = rig.lab().command(host, "keepalived")?;
            command.args(["--dont-fork", "--log-console"]).arg("--use-file").arg(&file);
            command.arg("--pid").arg(dir.join("pid")).arg("--vrrp_pid").arg(dir.join("vrrp.pid"));
            pair.managers.push(spawn(command, log)?);
        }
        Ok(pair)
    }

    fn start(&mut self, rig: &Rig, host: u16, leader: Option<u16>) -> Result<()> {
        let dir = self.dir(rig, host);
        let log = log(&dir, "log")?;
        let file = dir.join("redis.conf");
        // A server rewrites its file, and goes on with that; whom it follows is said here.
        let kept = fs::read_to_string(&file).unwrap_or_else(|_| {
            format!("port {}\nbind 0.0.0.0\nprotected-mode no\nsave \"\"\nrepl-diskless-sync-delay 0\n", self.port)
        });
        let mut conf: String =
            kept.lines().filter(|line| !line.starts_with("replicaof")).map(|line| format!("{line}\n")).collect();
        if let Some(leader) = leader {
            conf.push_str(&format!("replicaof {} {}\n", rig.lab().ipv4(leader, 0), self.port));
        }
        fs::write(&file, conf)?;
        let mut command = rig.lab().command(host, "redis-server")?;
        command.current_dir(&dir).arg(&file);
        self.servers.push((host, spawn(command, log)?));
        Ok(())
    }

    fn dir(&self, rig: &Rig, host: u16) -> PathBuf {
        rig.lab().host_dir(host).join(format!("redis-{}", self.port))
    }

    fn is_primary(&self, rig: &Rig, host: u16) -> bool {
        ask(rig, host, self.port, "ROLE").is_ok_and(|role| role.contains("master"))
    }

    fn follows(&self, rig: &Rig, host: u16) -> bool {
        ask(rig, host, self.port, "INFO replication")
            .is_ok_and(|info| info.contains("role:slave") && info.contains("master_link_status:up"))
    }
}

impl Pair for RedisPair {
    fn name(&self) -> String {
        match self.by {
            By::Ours if self.address.is_some() => "fide-failover, address".into(),
            By::Ours => "fide-failover".into(),
            By::Sentinel(down_after_ms) => format!("sentinel down-after={down_after_ms}ms"),
            By::Keepalived => "keepalived interval=1s".into(),
        }
    }

    fn note(&self) -> String {
        match self.by {
            By::Ours if self.address.is_some() => "the client writes to the address that moves".into(),
            By::Ours | By::Sentinel(_) => "the client tries both servers in turn".into(),
            By::Keepalived => "a script of keepalived's looks each second; its track_process hears of ends at once, but not in network namespaces".into(),
        }
    }

    fn leader(&self, rig: &Rig) -> Option<u16> {
        let leader = PAIR.into_iter().find(|host| self.is_primary(rig, *host) && self.follows(rig, 3 - host))?;
        let ready = match self.by {
            By::Sentinel(_) => (1..=3).all(|host| knows(rig, host, leader)),
            By::Ours | By::Keepalived => {
                self.address.is_none_or(|address| is_at(rig, leader, address) && !is_at(rig, 3 - leader, address))
            }
        };
        ready.then_some(leader)
    }

    fn client(&self, rig: &Rig) -> Result<Command> {
        let all = self.address.map_or_else(|| PAIR.map(|host| rig.lab().ipv4(host, 0)).to_vec(), |address| vec![address]);
        let all: Vec<String> = all.into_iter().map(|address| SocketAddr::from((address, self.port)).to_string()).collect();
        let mut command = rig.helper(CLIENT, redis::ROLE)?;
        command.arg("--follow").arg("--address").arg(all.join(","));
        Ok(command)
    }

    fn kill(&mut self, host: u16) -> Result<u64> {
        let at = self.servers.iter().position(|(h, _)| *h == host).context("the leading server is not known")?;
        let (_, mut child) = self.servers.swap_remove(at);
        let killed_ns = sys::now_ns();
        end(&mut child);
        Ok(killed_ns)
    }

    fn mend(&mut self, rig: &Rig, _: &Ui, host: u16) -> Result<()> {
        // Sentinel makes a server that comes back follow after ten seconds and more: it is told to at once.
        self.start(rig, host, matches!(self.by, By::Sentinel(_)).then_some(3 - host))
    }
}

impl Drop for RedisPair {
    fn drop(&mut self) {
        self.managers.iter_mut().for_each(end);
        self.servers.iter_mut().for_each(|(_, child)| end(child));
    }
}

/// An address of the hosts' first network that no host has.
fn moving(rig: &Rig, last: u8) -> Ipv4Addr {
    let [a, b, c, _] = rig.lab().ipv4(1, 0).octets();
    Ipv4Addr::new(a, b, c, last)
}

fn is_at(rig: &Rig, host: u16, address: Ipv4Addr) -> bool {
    rig.lab().in_host(host, || UdpSocket::bind((address, 0)).is_ok()).unwrap_or(false)
}

fn knows(rig: &Rig, host: u16, leader: u16) -> bool {
    let address = rig.lab().ipv4(leader, 0).to_string();
    ask(rig, host, SENTINELS, "INFO sentinel").is_ok_and(|info| {
        info.contains("status=ok")
            && info.contains("sentinels=3")
            && info.contains("slaves=1")
            && info.contains(&format!("address={address}:"))
    }) && ask(rig, host, SENTINELS, "SENTINEL REPLICAS pair")
        .is_ok_and(|replicas| replicas.contains("master-link-status\r\n$2\r\nok"))
}
