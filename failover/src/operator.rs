//! What operators ask, on any of the hosts: they read the group's entries, and propose some.

use crate::config::Config;
use crate::course::{Course, Entry};
use crate::run::{create, groups, told, wall_ms};
use anyhow::{Context as _, bail, ensure};
use fide_client::group::{Event, Group, Options, Stage};
use fide_client::{Client, Connection, Resources};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for an entry.
const DECIDED_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a leader that hands over.
const SWITCHED_MAX: Duration = Duration::from_secs(15);

/// `90s`, `10m`, `2h`.
///
/// # Errors
/// What it should look like.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.char_indices().last().map_or(0, |(at, _)| at);
    let (count, unit) = text.split_at(unit);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("write 90s, 10m or 2h".into()),
    };
    let count: u64 = count.parse().map_err(|_| "write 90s, 10m or 2h")?;
    count
        .checked_mul(seconds)
        .filter(|s| (1..=366 * 86400).contains(s))
        .map(Duration::from_secs)
        .ok_or_else(|| "is out of bounds".into())
}

/// One operator.
pub struct Operator {
    config: Config,
    socket: Option<PathBuf>,
    course: Course,
}

impl Operator {
    /// Of this configuration.
    pub fn new(config: Config, socket: Option<PathBuf>) -> Self {
        Self { config, socket, course: Course::default() }
    }

    /// The group, with every entry read that was there.
    fn open(&mut self) -> anyhow::Result<Group> {
        let name = self.config.group();
        let connection = Connection::open(self.socket.as_deref())?;
        let there = groups(&connection)?.into_iter().find(|group| group.name == name && group.stage == Stage::Running);
        let there = there.with_context(|| {
            format!("the group {name} does not run here: does fide-failover run on all of {:?}?", self.config.hosts)
        })?;
        let mut group = Group::open_with(&name, Options { path: self.socket.clone(), ..Options::default() })?;
        self.course = Course::default();
        let until = Instant::now() + DECIDED_MAX;
        while group.index() < there.index {
            ensure!(Instant::now() < until, "the group's entries did not come within {} s", DECIDED_MAX.as_secs());
            self.read(group.poll(Some(Duration::from_millis(100)))?)?;
        }
        Ok(group)
    }

    fn read(&mut self, event: Option<Event>) -> anyhow::Result<()> {
        match event {
            Some(Event::Entry(entry)) => {
                if let Some(read) = Entry::read(&entry.bytes) {
                    self.course.apply(&read);
                }
            }
            Some(Event::Snapshot { bytes, .. }) => {
                self.course = serde_json::from_slice(&bytes).context("the group's state is not one of managers")?
            }
            _ => {}
        }
        Ok(())
    }

    fn propose(&mut self, group: &mut Group, entry: &Entry) -> anyhow::Result<()> {
        let number = group.propose(&entry.bytes())?;
        let until = Instant::now() + DECIDED_MAX;
        while Instant::now() < until {
            let event = group.poll(Some(Duration::from_millis(100)))?;
            let is_own = matches!(&event, Some(Event::Entry(entry)) if entry.is_own(number, group.client()));
            self.read(event)?;
            if is_own {
                return Ok(());
            }
        }
        bail!("not decided within {} s; it may be later: fide group status", DECIDED_MAX.as_secs())
    }

    /// `check`
    pub fn check(&self) -> anyhow::Result<()> {
        let client = Client::open(self.socket.as_deref())?;
        let status = client.status()?;
        ensure!(
            self.config.hosts.contains(&status.node),
            "this host is {}, which is not one of hosts = {:?}",
            status.node,
            self.config.hosts
        );
        self.config.check_own(status.paths.iter().map(|path| path.address.as_str()))?;
        told(&self.config, &status)?;
        for host in self.config.hosts.iter().filter(|host| **host != status.node) {
            let known = status.hosts.iter().find(|known| known.name == *host);
            match known {
                None => println!("warning: {host} is not heard: does fided run there?"),
                Some(known) if !known.fence.is_some_and(|fence| fence.host) => {
                    println!(
                        "warning: {host} promises no fence of the whole host: should it become silent while it leads, nobody takes over (docs/fence.md)"
                    );
                }
                Some(_) => {}
            }
        }
        let mut server = self.config.server()?;
        match server.look() {
            Ok(report) if report.primary => println!("the server takes writes"),
            Ok(report) => println!("the server follows {}", report.follows.unwrap_or_default()),
            Err(why) => println!("warning: the server does not answer: {why}"),
        }
        println!("the configuration is right");
        Ok(())
    }

    /// `status`
    pub fn status(&mut self, json: bool) -> anyhow::Result<()> {
        self.open()?;
        let client = Client::open(self.socket.as_deref())?;
        let course = self.course.clone();
        let mut rows = Vec::new();
        for host in &self.config.hosts {
            let known = |target: String| client.monitor(&target, Resources::default());
            let server = known(format!("{}@{host}", self.config.name));
            let server = match &server {
                Ok(server) => {
                    let state = server.state.and_then(|state| serde_json::to_value(state).ok());
                    state.and_then(|state| state.as_str().map(str::to_owned)).unwrap_or_else(|| "unknown".into())
                }
                Err(_) => "unknown".into(),
            };
            let manager = known(format!("{}@{host}", self.config.group())).is_ok_and(|manager| manager.alive);
            let leads = course.leader.as_ref() == Some(host);
            rows.push((host.clone(), leads, server, manager, course.hosts.get(host).cloned().unwrap_or_default()));
        }
        if json {
            let hosts: Vec<_> = rows
                .iter()
                .map(|(host, leads, server, manager, address)| {
                    serde_json::json!({ "host": host, "leads": leads, "server": server, "manager": manager, "address": address })
                })
                .collect();
            let (term, leader, paused, switching, over) =
                (course.term, &course.leader, &course.paused, &course.switching, &course.over);
            println!(
                "{}",
                serde_json::json!({ "name": self.config.name, "term": term, "leader": leader, "paused": paused, "switching": switching, "over": over, "hosts": hosts })
            );
            return Ok(());
        }
        match &course.leader {
            Some(leader) => println!("{}: {leader} leads in term {}", self.config.name, course.term),
            None => {
                let why = course.choose(&self.config.hosts).err().unwrap_or_default();
                println!(
                    "{}: nobody leads: {why}; let one lead whatever the rules say: fide-failover lead HOST --force",
                    self.config.name
                );
            }
        }
        if let Some(leader) = course.leader.as_ref().filter(|_| !course.bids.is_empty())
            && let Err(why) = course.choose(&self.config.hosts)
        {
            println!(
                "the server of {leader} has ended and nobody takes over: {why}; it leads again when it is back, or: fide-failover lead HOST --force"
            );
        }
        if let Some(pause) = &course.paused {
            let until = pause.until_ms.map_or_else(
                || "until fide-failover resume".into(),
                |until| format!("for {} s", until.saturating_sub(wall_ms()) / 1000),
            );
            let why = if pause.why.is_empty() { String::new() } else { format!(" ({})", pause.why) };
            println!("paused {until}{why}: nobody takes over");
        }
        println!("{:<16} {:<8} {:<12} {:<8} ADDRESS", "HOST", "ROLE", "SERVER", "MANAGER");
        for (host, leads, server, manager, address) in rows {
            let role = match (&course.leader, leads) {
                (Some(_), true) => "leads",
                (Some(_), false) => "follows",
                (None, _) => "-",
            };
            println!("{host:<16} {role:<8} {server:<12} {:<8} {address}", if manager { "runs" } else { "missing" });
        }
        Ok(())
    }

    /// `history`
    pub fn history(&mut self, json: bool) -> anyhow::Result<()> {
        self.open()?;
        for decision in &self.course.history {
            if json {
                println!("{}", serde_json::to_string(decision)?);
            } else {
                let ago = wall_ms().saturating_sub(decision.at_ms) as f64 / 1000.0;
                println!("{ago:>12.3} s ago  term {:<4} {}", decision.term, decision.text);
            }
        }
        Ok(())
    }

    /// `switch`
    pub fn switch(&mut self, host: &str) -> anyhow::Result<()> {
        let mut group = self.open()?;
        ensure!(
            self.course.hosts.contains_key(host),
            "{host} takes no part; these do: {:?}",
            self.course.hosts.keys().collect::<Vec<_>>()
        );
        let leader = self.course.leader.clone().context("nobody leads: there is nobody who could hand over")?;
        if leader == host {
            println!("{host} leads already");
            return Ok(());
        }
        let term = self.course.term;
        let entry = Entry::Switch { term, to: host.into(), at_ms: wall_ms() };
        self.propose(&mut group, &entry)?;
        let until = Instant::now() + SWITCHED_MAX;
        while self.course.term == term && self.course.switching.as_deref() == Some(host) {
            ensure!(
                Instant::now() < until,
                "{leader} has not handed over within {} s: fide-failover history",
                SWITCHED_MAX.as_secs()
            );
            let event = group.poll(Some(Duration::from_millis(100)))?;
            self.read(event)?;
        }
        let last = self.course.history.back().map_or("", |decision| decision.text.as_str());
        ensure!(self.course.leader.as_deref() == Some(host), "{last}");
        println!("{last}");
        Ok(())
    }

    /// `pause`
    pub fn pause(&mut self, time: Option<Duration>, why: String) -> anyhow::Result<()> {
        let mut group = self.open()?;
        let at_ms = wall_ms();
        let until_ms = time.map(|time| at_ms + time.as_millis() as u64);
        self.propose(&mut group, &Entry::Pause { until_ms, why, at_ms })?;
        println!("paused: nobody takes over, on any host");
        Ok(())
    }

    /// `resume`
    pub fn resume(&mut self) -> anyhow::Result<()> {
        let mut group = self.open()?;
        ensure!(self.course.paused.is_some(), "it is not paused");
        self.propose(&mut group, &Entry::Resume { until_ms: None, at_ms: wall_ms() })?;
        println!("resumed");
        Ok(())
    }

    /// `lead`
    pub fn lead(&mut self, host: &str) -> anyhow::Result<()> {
        ensure!(self.config.hosts.contains(&host.to_owned()), "{host} is not one of hosts = {:?}", self.config.hosts);
        let connection = Connection::open(self.socket.as_deref())?;
        let name = self.config.group();
        let runs = groups(&connection)?.iter().any(|group| group.name == name && group.stage == Stage::Running);
        if !runs {
            // Not all hosts are there to begin it.
            let status = Client::open(self.socket.as_deref())?.status()?;
            let alive = |host: &String| {
                *host == status.node || status.hosts.iter().any(|known| known.name == *host && known.state == "alive")
            };
            let mut hosts: Vec<String> = self.config.hosts.iter().filter(|host| alive(host)).cloned().collect();
            hosts.sort_by_key(|host| *host != status.node);
            create(&connection, &name, &hosts).with_context(|| format!("the group {name} cannot begin with {hosts:?}"))?;
            let until = Instant::now() + DECIDED_MAX;
            while !groups(&connection)?.iter().any(|group| group.name == name && group.stage == Stage::Running) {
                ensure!(Instant::now() < until, "the group {name} does not begin: fide group status");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let mut group = self.open()?;
        let until = Instant::now() + DECIDED_MAX;
        while !self.course.hosts.contains_key(host) {
            ensure!(Instant::now() < until, "{host} takes no part: fide-failover does not run there");
            let event = group.poll(Some(Duration::from_millis(100)))?;
            self.read(event)?;
        }
        let client = Client::open(self.socket.as_deref())?;
        // Another term may begin before this word is read: if nobody leads in that, it is said
        // again.
        loop {
            let term = self.course.term;
            let server = client.monitor(&format!("{}@{host}", self.config.name), Resources::default());
            let process = server.ok().filter(|server| server.alive).map_or(0, |server| server.subject.app);
            let (why, at_ms) = ("an operator's word".into(), wall_ms());
            self.propose(&mut group, &Entry::Take { term, host: host.into(), process, force: true, why, at_ms })?;
            match self.course.leader.as_deref() {
                Some(leader) if leader != host => {
                    bail!("{leader} leads by now, in term {}: fide-failover status", self.course.term)
                }
                Some(_) => break,
                None => ensure!(Instant::now() < until, "{host} does not lead: {}", self.course.over),
            }
        }
        println!("{host} leads in term {}", self.course.term);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "10", "m", "-1s", "10 m", "99999999999h", "1µ", "0s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
