//! A Redis or Valkey server.
//!
//! What it is told it has to be after a restart, too: whoever follows has that in its file (`CONFIG REWRITE`), and whoever leads has there whom it followed
//! before, so that a server that starts takes no writes and gives nobody its data before it is told to lead.

use crate::config;
use crate::server::{Report, Server};
use redis::{Client, Connection, ConnectionLike as _, RedisError, Value, cmd};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time in which a leader that hands over takes no writes.
const HAND_MAX: Duration = Duration::from_secs(5);
/// Nobody answers there: whom a server follows that is to take no writes.
const NOBODY: (&str, u16) = ("127.0.0.1", 1);

/// One of this host.
pub struct Redis {
    client: Client,
    connection: Option<Connection>,
    /// Why its configuration was not written; empty: it was.
    unwritten: String,
    /// Whom this connection reaches, and whether that one takes writes.
    seen: Option<(String, bool)>,
    /// The server whose file says that it takes no writes when it starts.
    written: Option<String>,
}

fn text(error: &RedisError) -> String {
    error.to_string()
}

/// `127.0.0.1:6379`, `[::1]:6379`.
fn split(address: &str) -> Result<(&str, &str), String> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| format!("{address} is no address with a port"))?;
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

impl Redis {
    /// As configured. Does not connect yet.
    ///
    /// # Errors
    /// A password that cannot be read.
    pub fn new(config: &config::Redis) -> Result<Self, String> {
        use redis::IntoConnectionInfo as _;
        let mut settings = redis::RedisConnectionInfo::default();
        if let Some(path) = &config.password_file {
            let password = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            settings = settings.set_password(password.trim());
        }
        if let Some(user) = &config.user {
            settings = settings.set_username(user.as_str());
        }
        let info = ("127.0.0.1", config.port).into_connection_info().map_err(|e| text(&e))?.set_redis_settings(settings);
        let client = Client::open(info).map_err(|e| text(&e))?;
        Ok(Self { client, connection: None, unwritten: String::new(), seen: None, written: None })
    }

    fn connection(&mut self) -> Result<&mut Connection, String> {
        if self.connection.as_ref().is_none_or(|connection| !connection.is_open()) {
            let connection = self.client.get_connection_with_timeout(TIMEOUT).map_err(|e| text(&e))?;
            connection.set_read_timeout(Some(TIMEOUT)).map_err(|e| text(&e))?;
            connection.set_write_timeout(Some(TIMEOUT)).map_err(|e| text(&e))?;
            (self.connection, self.seen) = (Some(connection), None);
        }
        self.connection.as_mut().ok_or_else(|| "is not connected".into())
    }

    fn ask(&mut self, words: &[&str]) -> Result<Value, String> {
        let (name, rest) = words.split_first().ok_or("nothing to ask")?;
        let command = cmd(name).arg(rest).to_owned();
        let answer = command.query::<Value>(self.connection()?);
        answer.map_err(|e| {
            // A connection whose answer did not come gives it to the next question.
            if e.is_io_error() || e.is_timeout() {
                self.connection = None;
            }
            text(&e)
        })
    }

    fn info(&mut self) -> Result<HashMap<String, String>, String> {
        let answer = self.ask(&["INFO", "server", "persistence", "replication", "keyspace"])?;
        let answer: String = redis::from_redis_value(answer).map_err(|e| e.to_string())?;
        Ok(answer.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.into(), value.trim().into())).collect())
    }

    /// Its file says what it is now.
    fn write_down(&mut self) {
        self.unwritten = match self.ask(&["CONFIG", "REWRITE"]) {
            Ok(_) => String::new(),
            Err(e) => format!("it would take writes behind a restart, because its configuration cannot be written: {e}"),
        };
    }

    /// Clients that expected another server are to look for it.
    fn turn_clients_away(&mut self) {
        for kind in ["normal", "pubsub"] {
            _ = self.ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
        }
    }

    fn replicaof(&mut self, host: &str, port: &str) -> Result<(), String> {
        self.ask(&["REPLICAOF", host, port])?;
        self.ask(&["CLIENT", "UNPAUSE"])?;
        self.turn_clients_away();
        self.write_down();
        Ok(())
    }
}

fn number(info: &HashMap<String, String>, key: &str) -> u64 {
    info.get(key).and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn report(info: &HashMap<String, String>, unwritten: &str) -> Report {
    let is = |key: &str, value: &str| info.get(key).is_some_and(|it| it == value);
    let primary = is("role", "master");
    let follows = info
        .get("master_host")
        .zip(info.get("master_port"))
        .map(|(host, port)| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") });
    let usable = if is("loading", "1") {
        Err("loads its data".into())
    } else if is("master_sync_in_progress", "1") {
        Err("gets its data".into())
    } else {
        Ok(())
    };
    Report {
        instance: info.get("run_id").cloned().unwrap_or_default(),
        primary,
        synced_ago: match info.get("master_link_down_since_seconds").map(|ago| ago.parse::<u64>()) {
            _ if usable.is_err() => None,
            None if is("master_link_status", "up") => Some(Duration::ZERO),
            Some(Ok(ago)) => Some(Duration::from_secs(ago + 1)), // whole seconds, rounded down
            _ => None,                                           // -1: its link to this one was never up
        },
        follows,
        position: number(info, if primary { "master_repl_offset" } else { "slave_repl_offset" }),
        stream: info.get("master_replid").and_then(|id| u64::from_str_radix(id.get(..16)?, 16).ok()).filter(|id| *id != 0),
        has_data: info.keys().any(|key| key.starts_with("db") && key[2..].bytes().all(|b| b.is_ascii_digit())),
        // What is saved when it is stopped; `save` is not in INFO, and asked for apart.
        durable: is("aof_enabled", "1"),
        usable,
        doubt: unwritten.into(),
    }
}

/// How much of the stream a follower has, by its leader's word.
fn follower(info: &HashMap<String, String>, address: &str) -> Option<u64> {
    let (host, port) = split(address).ok()?;
    (0..number(info, "connected_slaves")).find_map(|n| {
        let line = info.get(&format!("slave{n}"))?;
        let field = |key: &str| line.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
        (field("ip") == Some(host) && field("port") == Some(port) && field("state") == Some("online"))
            .then(|| field("offset")?.parse().ok())
            .flatten()
    })
}

impl Server for Redis {
    fn look(&mut self) -> Result<Report, String> {
        let info = self.info()?;
        let mut report = report(&info, &self.unwritten);
        if report.primary && !report.durable {
            let save = self.ask(&["CONFIG", "GET", "save"])?;
            let save: Vec<String> = redis::from_redis_value(save).map_err(|e| e.to_string())?;
            report.durable = save.get(1).is_some_and(|points| !points.is_empty());
        }
        self.seen = Some((report.instance.clone(), report.primary));
        Ok(report)
    }

    fn lead(&mut self, instance: &str) -> Result<(), String> {
        // Every question to another instance is one on another connection.
        if self.seen.is_none() {
            self.look()?;
        }
        match self.seen.take() {
            Some((seen, _)) if seen != instance => return Err("it was restarted".into()),
            Some((_, false)) => return self.ask(&["REPLICAOF", "NO", "ONE"]).map(drop),
            _ => {}
        }
        self.ask(&["CLIENT", "UNPAUSE"])?;
        if self.written.as_deref() == Some(instance) {
            return Ok(());
        }
        // It leads already, perhaps since before anybody managed it. Its file is to say what a server is that starts.
        let connection = self.connection()?;
        let mut transaction = redis::pipe();
        transaction.atomic();
        transaction.cmd("REPLICAOF").arg(NOBODY.0).arg(NOBODY.1);
        transaction.cmd("CONFIG").arg("REWRITE");
        transaction.cmd("REPLICAOF").arg("NO").arg("ONE");
        let written = transaction.query::<Value>(connection);
        self.unwritten = match written {
            Ok(_) => {
                self.written = Some(instance.into());
                String::new()
            }
            Err(e) => format!("it would take writes behind a restart, because its configuration cannot be written: {e}"),
        };
        if self.look()?.primary { Ok(()) } else { self.ask(&["REPLICAOF", "NO", "ONE"]).map(drop) }
    }

    fn follow(&mut self, address: &str) -> Result<(), String> {
        let (host, port) = split(address)?;
        if report(&self.info()?, "").follows.as_deref() == Some(address) {
            self.write_down();
            return Ok(());
        }
        self.replicaof(host, port)
    }

    fn close(&mut self) -> Result<(), String> {
        self.replicaof(NOBODY.0, &NOBODY.1.to_string())
    }

    fn hand(&mut self, address: &str) -> Result<(), String> {
        let until = Instant::now() + HAND_MAX;
        while follower(&self.info()?, address).is_none() {
            if Instant::now() >= until {
                return Err(format!("{address} does not follow it"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Should this manager end meanwhile, the server takes writes again by itself.
        let pause = (HAND_MAX * 4).as_millis().to_string();
        self.ask(&["CLIENT", "PAUSE", &pause, "WRITE"])?;
        let until = Instant::now() + HAND_MAX;
        loop {
            let info = self.info()?;
            if follower(&info, address).is_some_and(|position| position >= number(&info, "master_repl_offset")) {
                // Should this manager end now, the server must not take writes again beside the next leader.
                return self.close();
            }
            if Instant::now() >= until {
                self.ask(&["CLIENT", "UNPAUSE"])?;
                return Err(format!("{address} had not all writes after {} s", HAND_MAX.as_secs()));
            }
            // The follower says how far it is once a second, and when it is asked.
            _ = self.ask(&["WAIT", "1000", "5"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> HashMap<String, String> {
        text.lines().filter_map(|line| line.trim().split_once(':')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn a_replica_is_read() {
        let info = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:up\nmaster_sync_in_progress:0\nloading:0\n\
                    slave_repl_offset:42\nmaster_repl_offset:43\nrun_id:x\nmaster_replid:00000000000000ff0000000000000000000000aa\ndb0:keys=1,expires=0";
        let of = report(&read(info), "");
        assert_eq!((of.primary, of.synced_ago, of.position, of.has_data), (false, Some(Duration::ZERO), 42, true));
        assert_eq!(of.stream, Some(255));
        let since = |seconds: &str| {
            let down = format!("master_link_status:down\nmaster_link_down_since_seconds:{seconds}");
            report(&read(&info.replace("master_link_status:up", &down)), "").synced_ago
        };
        assert_eq!((since("3"), since("-1")), (Some(Duration::from_secs(4)), None));
        assert_eq!(of.follows.as_deref(), Some("10.0.0.1:6379"));
        let syncs = report(&read(&info.replace("sync_in_progress:0", "sync_in_progress:1")), "");
        assert!(syncs.synced_ago.is_none() && syncs.usable.is_err());
    }

    #[test]
    fn a_follower_is_found_by_its_address() {
        let info = read(
            "connected_slaves:2\nslave0:ip=10.0.0.2,port=6379,state=online,offset=5,lag=0\nslave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=9,lag=0",
        );
        assert_eq!(follower(&info, "10.0.0.2:6379"), Some(5));
        assert_eq!((follower(&info, "10.0.0.3:6379"), follower(&info, "10.0.0.4:6379")), (None, None));
    }
}
