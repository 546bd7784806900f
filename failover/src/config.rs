//! The configuration: one TOML file, the same on every host.

use crate::judge::Planned;
use crate::server::Server;
use anyhow::{Context as _, bail, ensure};
use fide_wire::control::Selector;
use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr};
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
    /// The server, if it is Redis or Valkey.
    pub redis: Option<Redis>,
    /// The server, if it is PostgreSQL.
    pub postgresql: Option<Postgresql>,
    /// A service that runs where it leads, and nowhere else.
    pub unit: Option<Unit>,
    /// An address that moves with the leader; alone, without any server, it is what leads.
    pub address: Option<Address>,
    /// What becomes of a leader that was asked to end, and did: `wait 30s`, or `take over`.
    #[serde(default = "wait", deserialize_with = "planned")]
    pub planned: Planned,
    /// Whoever lacks more bytes than this of what the last leader had does not take over:
    /// `"16MiB"`; absent: whoever followed until the end may.
    #[serde(default, deserialize_with = "bytes")]
    pub lag_max: Option<u64>,
    /// Programs that are run when something is decided.
    #[serde(default)]
    pub run: Run,
    /// Where this host remembers the last term.
    #[serde(default = "state")]
    pub state: PathBuf,
}

const fn wait() -> Planned {
    Planned::Wait(30_000_000_000)
}

fn planned<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Planned, D::Error> {
    let text = String::deserialize(from)?;
    if text == "take over" {
        return Ok(Planned::AtOnce);
    }
    let time = text.strip_prefix("wait ").and_then(|time| crate::operator::duration(time).ok());
    let time = time.ok_or_else(|| serde::de::Error::custom("planned: write \"wait 30s\" or \"take over\""))?;
    Ok(Planned::Wait(time.as_nanos() as u64))
}

fn bytes<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim_start() {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => 64,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1u64.checked_shl(unit)?));
    bytes.map(Some).ok_or_else(|| serde::de::Error::custom("lag_max: write \"0B\", \"64KiB\" or \"16MiB\""))
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

/// A PostgreSQL server, on this host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgresql {
    /// Its data directory; what is done there is done with the rights of its owner.
    pub data: PathBuf,
    /// Its port.
    #[serde(default = "postgresql_port")]
    pub port: u16,
    /// Where other servers reach this one; absent: this host's address on the agent's first path.
    pub address: Option<String>,
    /// Where its programs are; absent: /usr/lib/postgresql/VERSION/bin.
    pub bin: Option<PathBuf>,
    /// The directory of its Unix socket.
    #[serde(default = "postgresql_socket")]
    pub socket: PathBuf,
    /// Its user that the manager is on this host, without a password: `peer` in pg_hba.conf.
    #[serde(default = "postgresql_user")]
    pub user: String,
    /// Its user that servers of other hosts are: REPLICATION, and what pg_rewind needs.
    #[serde(default = "postgresql_user")]
    pub replication_user: String,
    /// That one's password, as libpq wants it (`*:*:*:user:password`), readable for the owner of the data only.
    pub passfile: Option<PathBuf>,
    /// The service that starts and stops it; absent: pg_ctl does.
    pub unit: Option<String>,
}

const fn postgresql_port() -> u16 {
    5432
}

fn postgresql_socket() -> PathBuf {
    "/var/run/postgresql".into()
}

fn postgresql_user() -> String {
    "postgres".into()
}

/// A systemd service, on this host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// `x.service`
    pub name: String,
    /// It is one of the service manager of the user as whom this manager runs.
    #[serde(default)]
    pub user: bool,
}

/// An address that the leader's host has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// Address and prefix, as `ip address` wants them: 10.0.0.9/24, fd00::9/64.
    pub ip: String,
    /// On which interface.
    pub interface: String,
}

impl Address {
    /// The address alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn alone(&self) -> anyhow::Result<IpAddr> {
        let (ip, prefix) = self.ip.split_once('/').context("address.ip has no prefix length: write 10.0.0.9/24")?;
        let ip: IpAddr = ip.parse().with_context(|| format!("address.ip: {ip} is no address"))?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        ensure!(prefix.parse::<u8>().is_ok_and(|length| length <= most), "address.ip: {prefix} is no prefix length");
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
    /// Refuses an address that moves and is one of this host's own (by path, with or without prefix): the host would lose it with its leadership.
    ///
    /// # Errors
    /// Which it is.
    pub fn check_own<'a>(&self, own: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
        let Some(moves) = self.address.as_ref().map(Address::alone).transpose()? else { return Ok(()) };
        for (path, address) in own.enumerate() {
            let address = address.split('/').next().unwrap_or_default();
            ensure!(
                address.parse() != Ok(moves),
                "address.ip: {moves} is this host's own, by which its agent works (path {path}); name one of the network that no host has"
            );
        }
        Ok(())
    }

    /// Where servers of other hosts reach this one's: what the file says, else by which this host's agent works (interface and
    /// address, with or without prefix, by path). A link-local address means nothing to a server that is told no interface: the
    /// global one of that interface takes its place. `listed`: /proc/net/if_inet6.
    ///
    /// # Errors
    /// What to write into the file: there is no such address, or there are several.
    pub fn told<'a>(&self, paths: impl Iterator<Item = (&'a str, &'a str)>, listed: &str) -> anyhow::Result<String> {
        if let Some(address) = self.reached().0 {
            return Ok(address.to_owned());
        }
        let bare = |address: &'a str| address.split('/').next().unwrap_or_default();
        let paths: Vec<(&str, &str)> = paths.map(|(interface, address)| (interface, bare(address))).collect();
        let known = || paths.iter().filter(|(_, address)| !address.is_empty());
        let is_local = |address: &str| address.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_unicast_link_local());
        if let Some((_, address)) = known().find(|(_, address)| !is_local(address)) {
            return Ok((*address).to_owned());
        }
        let (interface, local) = known().next().or(paths.first()).context("the agent has no path")?;
        // Nobody is told anything.
        if self.is_cold() {
            return Ok((*local).to_owned());
        }
        let moves = self.address.as_ref().map(Address::alone).transpose()?;
        let found: Vec<Ipv6Addr> = globals(listed, interface).filter(|ip| moves != Some((*ip).into())).collect();
        let kind = if self.redis.is_some() { "redis" } else { "postgresql" };
        match found[..] {
            [only] => Ok(only.to_string()),
            [] => bail!(
                "{kind}.address is missing: this host's agent works by {local}, a link-local address, {interface} has no global one, \
                 and servers of other hosts cannot be told that one; give {interface} an address, or write the one by which others \
                 reach this server"
            ),
            _ => {
                let all: Vec<String> = found.iter().map(Ipv6Addr::to_string).collect();
                bail!(
                    "{kind}.address is missing: this host's agent works by {local}, a link-local address that servers of other hosts \
                     cannot be told, and {interface} has several others; write the one that stays: {}",
                    all.join(" or ")
                )
            }
        }
    }

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
        let kinds = [config.redis.is_some(), config.postgresql.is_some(), config.unit.is_some()];
        let kinds = kinds.into_iter().filter(|is| *is).count();
        ensure!(
            kinds == 1 || kinds == 0 && config.address.is_some(),
            "one of [redis], [postgresql] and [unit] says what leads, or an [address] alone; of the three there are {kinds}"
        );
        if let Some(unit) = &config.unit {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
            ensure!(
                unit.name.ends_with(".service") && !unit.name.starts_with('-') && unit.name.bytes().all(plain),
                "unit.name: {:?} is no service; write x.service",
                unit.name
            );
        }
        ensure!(
            config.lag_max.is_none() || !config.is_cold(),
            "lag_max: only servers of [redis] and [postgresql] have data of which one could lack some"
        );
        if let Some(redis) = &config.redis {
            ensure!(redis.port != 0, "redis.port must not be 0");
            if redis.user.is_some() && redis.password_file.is_none() {
                bail!("redis.user without redis.password_file: a user of Redis has a password");
            }
        }
        if let Some(postgresql) = &config.postgresql {
            ensure!(postgresql.port != 0, "postgresql.port must not be 0");
            ensure!(postgresql.data.is_absolute(), "postgresql.data: write the whole path");
            let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'\'' && b != b'\\');
            ensure!(
                plain(&postgresql.replication_user),
                "postgresql.replication_user: {:?} is no name",
                postgresql.replication_user
            );
            let passfile = postgresql.passfile.as_ref().map(|path| path.display().to_string());
            ensure!(passfile.as_deref().is_none_or(plain), "postgresql.passfile: a path without blanks and quotes");
        }
        if let Some(address) = &config.address {
            address.alone()?;
            let plain = |b: u8| b.is_ascii_graphic() && b != b'/';
            ensure!(
                (1..16).contains(&address.interface.len()) && address.interface.bytes().all(plain),
                "address.interface: {:?} names no interface",
                address.interface
            );
        }
        Ok(config)
    }

    /// The server of this host.
    ///
    /// # Errors
    /// What of it cannot be.
    pub fn server(&self) -> anyhow::Result<Box<dyn Server>> {
        if let Some(redis) = &self.redis {
            return Ok(Box::new(crate::redis::Redis::new(redis).map_err(anyhow::Error::msg)?));
        }
        if let Some(postgresql) = &self.postgresql {
            return Ok(Box::new(crate::postgresql::Postgresql::new(postgresql).map_err(anyhow::Error::msg)?));
        }
        Ok(Box::new(crate::unit::Unit::new(self.unit.clone())))
    }

    /// What leads runs nowhere else: there are no followers that are ready.
    #[must_use]
    pub const fn is_cold(&self) -> bool {
        self.redis.is_none() && self.postgresql.is_none()
    }

    /// Where other hosts reach that server, if it is said; and its port.
    #[must_use]
    pub fn reached(&self) -> (Option<&str>, u16) {
        match (&self.redis, &self.postgresql) {
            (Some(redis), _) => (redis.address.as_deref(), redis.port),
            (None, Some(postgresql)) => (postgresql.address.as_deref(), postgresql.port),
            (None, None) => (None, 0),
        }
    }

    /// What the agent watches; nothing: the host alone.
    #[must_use]
    pub fn selector(&self) -> Option<Selector> {
        match &self.unit {
            Some(unit) => Some(Selector::Unit(unit.name.clone())),
            None => Some(self.reached().1).filter(|port| *port != 0).map(Selector::Port),
        }
    }

    /// The group in which it is decided who leads, and the name of managers' processes.
    #[must_use]
    pub fn group(&self) -> String {
        format!("failover-{}", self.name)
    }
}

/// The global addresses of an interface that stay: none that is temporary, deprecated (it moves) or not known to be unique.
fn globals(listed: &str, interface: &str) -> impl Iterator<Item = Ipv6Addr> {
    /// IFA_F_TEMPORARY, IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE
    const PASSING: u32 = 0x01 | 0x08 | 0x20 | 0x40;
    listed.lines().filter_map(move |line| {
        // Address, interface's number, length of the prefix, scope (0: global), flags, interface.
        let [address, _, _, scope, flags, name] = line.split_whitespace().collect::<Vec<&str>>()[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let stays = name == interface && u32::from_str_radix(scope, 16) == Ok(0) && flags & PASSING == 0;
        stays.then(|| u128::from_str_radix(address, 16).ok().map(Ipv6Addr::from)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_a_global_address_or_the_file_must_name_one() {
        let listed = "fe8000000000000000000000000000a1 02 40 20 80     eth0\n\
                      fd77000000000000000000000000000a 02 40 00 80     eth0\n\
                      fd7700000000000000000000000000c8 02 40 00 22     eth0\n\
                      fd77000000000000000000000000000c 02 40 00 80     eth1\n";
        let config = Config::parse(WHOLE).unwrap();
        let told = |config: &Config, paths: &[(&str, &str)], listed: &str| {
            config.told(paths.iter().copied(), listed).map_err(|e| e.to_string())
        };
        let local = [("eth0", "fe80::a1/64"), ("eth1", "")];
        assert_eq!(told(&config, &local, listed).unwrap(), "fd77::a");
        assert_eq!(told(&config, &[("eth0", "fe80::a1"), ("eth1", "10.1.0.1/24")], listed).unwrap(), "10.1.0.1");
        assert_eq!(told(&config, &[("eth0", "10.0.0.1/24"), ("eth1", "10.1.0.1/24")], listed).unwrap(), "10.0.0.1");
        let none = told(&config, &local, "").unwrap_err();
        assert!(none.starts_with("redis.address is missing") && none.contains("eth0 has no global one"), "{none}");
        let several = format!("{listed}fd77000000000000000000000000000b 02 40 00 80 eth0\n");
        let why = told(&config, &local, &several).unwrap_err();
        assert!(why.ends_with("fd77::a or fd77::b"), "{why}");
        // The address that moves is not this host's, marked or not.
        let six = WHOLE.replace("10.0.0.9/24", "fd77::b/64");
        assert_eq!(told(&Config::parse(&six).unwrap(), &local, &several).unwrap(), "fd77::a");
        let named = WHOLE.replace("port = 6379", "port = 6379\n address = \"a.example\"");
        assert_eq!(told(&Config::parse(&named).unwrap(), &local, "").unwrap(), "a.example");
        let alone = WHOLE.replace("[redis]\n        port = 6379", "");
        assert_eq!(told(&Config::parse(&alone).unwrap(), &local, "").unwrap(), "fe80::a1");
    }

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
        assert_eq!((config.group().as_str(), config.reached().1), ("failover-orders", 6379));
        assert!(WHOLE.trim().lines().count() <= 12);
    }

    #[test]
    fn a_lag_is_read() {
        let of = |lag: &str| Config::parse(&WHOLE.replace("[redis]", &format!("lag_max = {lag:?}\n[redis]"))).unwrap().lag_max;
        assert_eq!((of("0B"), of("64KiB"), of("16 MiB")), (Some(0), Some(65_536), Some(16 << 20)));
        assert_eq!(Config::parse(WHOLE).unwrap().lag_max, None);
    }

    #[test]
    fn an_address_that_moves_is_none_of_a_hosts_own() {
        let text = "name = \"orders\"\nhosts = [\"a\", \"b\"]\n[address]\nip = \"10.0.0.9/24\"\ninterface = \"eth0\"\n";
        let config = Config::parse(text).unwrap();
        assert!(config.check_own(["10.0.0.1/24", "10.0.1.9"].into_iter()).is_ok());
        let refused = config.check_own(["10.0.0.1/24", "10.0.0.9/24"].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("path 1") && refused.contains("10.0.0.9"), "{refused}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (from, to, word) in [
            ("\"a\", \"b\"", "\"a\"", "hosts"),
            ("\"a\", \"b\"", "\"a\", \"a\"", "twice"),
            ("6379", "0", "redis.port"),
            ("10.0.0.9/24", "10.0.0.9", "prefix"),
            ("10.0.0.9/24", "fd00::1/129", "prefix"),
            ("eth0", "", "interface"),
            ("orders", "or ders", "name"),
            ("port", "prot", "prot"),
            ("[redis]\n        port = 6379", "[redis]\nport = 1\n[unit]\nname = \"x.service\"", "one of"),
            ("[redis]\n        port = 6379", "[unit]\nname = \"x\"", "x.service"),
            ("[redis]", "planned = \"wait\"\n[redis]", "wait 30s"),
            ("[redis]\n        port = 6379", "[postgresql]\ndata = \"main\"", "whole path"),
            ("[redis]", "lag_max = \"16 pages\"\n[redis]", "16MiB"),
            ("[redis]", "lag_max = \"99999999999GiB\"\n[redis]", "16MiB"),
            ("[redis]\n        port = 6379", "lag_max = \"1MiB\"\n[unit]\nname = \"x.service\"", "lag_max"),
        ] {
            let error = format!("{:#}", Config::parse(&WHOLE.replace(from, to)).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }
}
