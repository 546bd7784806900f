//! The configuration: one TOML file, the same on every host.

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Where it is unless somebody says otherwise.
pub const PATH: &str = "/etc/fide/failover.toml";

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What the servers are called together; each is watched under this name on its host.
    pub name: String,
    /// All hosts that have one, the preferred ones first.
    pub hosts: Vec<String>,
    /// The server.
    pub redis: Redis,
    /// An address that moves with the leader.
    pub address: Option<Address>,
    /// Programs that are run when something is decided.
    #[serde(default)]
    pub run: Run,
    /// Where this host remembers the last term.
    #[serde(default = "state")]
    pub state: PathBuf,
}

fn state() -> PathBuf {
    "/var/lib/fide-failover".into()
}

/// A Redis or Valkey server, on this host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// Its port.
    pub port: u16,
    /// Where servers of other hosts reach it; absent: this host's address on the agent's first path.
    pub address: Option<String>,
    /// The user that the manager is to it.
    pub user: Option<String>,
    /// A file with that one's password.
    pub password_file: Option<PathBuf>,
}

/// An address that the leader's host has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// Address and prefix, as `ip address` wants them: 10.0.0.9/24.
    pub ip: String,
    /// On which interface.
    pub interface: String,
}

impl Address {
    /// The address alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn ipv4(&self) -> anyhow::Result<Ipv4Addr> {
        let (ip, prefix) = self.ip.split_once('/').context("address.ip has no prefix length: write 10.0.0.9/24")?;
        let ip = ip.parse().with_context(|| format!("address.ip: {ip} is no IPv4 address"))?;
        ensure!(prefix.parse::<u8>().is_ok_and(|length| length <= 32), "address.ip: {prefix} is no prefix length");
        Ok(ip)
    }
}

/// Programs, with their arguments. They get FIDE_NAME, FIDE_TERM and FIDE_LEADER, and 10 s; nothing waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Behind this host's server's promotion.
    #[serde(default)]
    pub leading: Vec<String>,
    /// When it follows another one.
    #[serde(default)]
    pub following: Vec<String>,
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is refused", path.display()))
    }

    /// Reads and checks its text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = toml::from_str(text)?;
        fide_wire::names::check_node(&config.group()).map_err(anyhow::Error::msg).context("name")?;
        ensure!(config.hosts.len() >= 2, "hosts: a server can fail over to another one only where there are two");
        for (at, host) in config.hosts.iter().enumerate() {
            fide_wire::names::check_node(host).map_err(anyhow::Error::msg).context("hosts")?;
            ensure!(!config.hosts[..at].contains(host), "hosts: {host} is there twice");
        }
        ensure!(config.redis.port != 0, "redis.port must not be 0");
        if config.redis.user.is_some() && config.redis.password_file.is_none() {
            bail!("redis.user without redis.password_file: a user of Redis has a password");
        }
        if let Some(address) = &config.address {
            address.ipv4()?;
            let plain = |b: u8| b.is_ascii_graphic() && b != b'/';
            ensure!(
                (1..16).contains(&address.interface.len()) && address.interface.bytes().all(plain),
                "address.interface: {:?} names no interface",
                address.interface
            );
        }
        Ok(config)
    }

    /// The group in which it is decided who leads, and the name of managers' processes.
    #[must_use]
    pub fn group(&self) -> String {
        format!("failover-{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        name = "orders"
        hosts = ["a", "b"]
        [redis]
        port = 6379
        [address]
        ip = "10.0.0.9/24"
        interface = "eth0"
    "#;

    #[test]
    fn a_whole_file_is_twelve_lines_at_most() {
        let config = Config::parse(WHOLE).unwrap();
        assert_eq!((config.group().as_str(), config.redis.port), ("failover-orders", 6379));
        assert!(WHOLE.trim().lines().count() <= 12);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (from, to, word) in [
            ("\"a\", \"b\"", "\"a\"", "hosts"),
            ("\"a\", \"b\"", "\"a\", \"a\"", "twice"),
            ("6379", "0", "redis.port"),
            ("10.0.0.9/24", "10.0.0.9", "prefix"),
            ("10.0.0.9/24", "fd00::1/64", "IPv4"),
            ("eth0", "", "interface"),
            ("orders", "or ders", "name"),
            ("port", "prot", "prot"),
        ] {
            let error = format!("{:#}", Config::parse(&WHOLE.replace(from, to)).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }
}
