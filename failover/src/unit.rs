//! What runs on the leading host alone: a systemd service, or nothing but an address. It has no data of its own that one host could have more of.

use crate::config;
use crate::server::{Report, Server};
use std::collections::HashMap;
use std::process::Command;

/// Longest wait for a service that starts or ends.
const MAX_S: &str = "30";

/// One of this host.
pub struct Unit {
    unit: Option<config::Unit>,
    /// Counts what began here: whatever began without this manager is another instance.
    generation: u64,
    /// What runs, as systemd numbers it.
    running: Option<String>,
    /// The address alone: this host has it.
    has: bool,
    follows: Option<String>,
}

impl Unit {
    /// A service, or nothing but the address. Does not look for it yet.
    pub const fn new(unit: Option<config::Unit>) -> Self {
        Self { unit, generation: 0, running: None, has: false, follows: None }
    }

    fn systemctl(&self, words: &[&str]) -> Result<String, String> {
        let Some(unit) = &self.unit else { return Ok(String::new()) };
        let mut command = Command::new("timeout");
        command.args([MAX_S, "systemctl"]).args(unit.user.then_some("--user")).args(words).arg(&unit.name);
        let out = command.output().map_err(|e| format!("cannot run systemctl: {e}"))?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        if out.status.code() == Some(124) {
            return Err(format!("systemctl {}: not done after {MAX_S} s", words[0]));
        }
        Err(format!("systemctl {}: {}", words[0], String::from_utf8_lossy(&out.stderr).trim()))
    }

    /// Which invocation runs, if one does, and what else systemd says.
    fn state(&self) -> Result<(Option<String>, HashMap<String, String>), String> {
        let said = self.systemctl(&["show", "-p", "LoadState,ActiveState,InvocationID,Restart"])?;
        let said: HashMap<String, String> =
            said.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect();
        let field = |key: &str| said.get(key).map(String::as_str).unwrap_or_default();
        let runs = !matches!(field("ActiveState"), "inactive" | "failed" | "");
        let invocation = runs.then(|| field("InvocationID").to_owned());
        Ok((invocation, said))
    }

    fn end(&mut self) -> Result<(), String> {
        self.has = false;
        self.systemctl(&["stop"])?;
        if self.unit.is_some() && self.state()?.0.is_some() {
            return Err("it does not end".into());
        }
        // What this manager ends is no other instance.
        self.running = None;
        Ok(())
    }
}

impl Server for Unit {
    fn look(&mut self) -> Result<Report, String> {
        let (running, said) = if self.unit.is_some() { self.state()? } else { (self.has.then(String::new), HashMap::new()) };
        if self.unit.is_some() && running != self.running {
            self.generation += 1;
            self.running.clone_from(&running);
        }
        let primary = running.is_some();
        let is = |key: &str, value: &str| said.get(key).is_none_or(|it| it == value);
        Ok(Report {
            instance: self.generation.to_string(),
            primary,
            follows: self.follows.clone().filter(|_| !primary),
            synced_ago: None,
            position: 0,
            stream: None,
            has_data: primary,
            durable: true,
            usable: if is("LoadState", "loaded") { Ok(()) } else { Err("there is no such service".into()) },
            doubt: if is("Restart", "no") {
                String::new()
            } else {
                "systemd may start it here while it runs elsewhere: its unit must say Restart=no".into()
            },
        })
    }

    fn lead(&mut self, instance: &str) -> Result<(), String> {
        if self.look()?.instance != instance {
            return Err("it was started or ended meanwhile".into());
        }
        self.follows = None;
        if self.unit.is_none() {
            self.has = true;
            return Ok(());
        }
        self.systemctl(&["start"])?;
        self.running = self.state()?.0;
        if self.running.is_some() { Ok(()) } else { Err("it ended at once".into()) }
    }

    fn follow(&mut self, address: &str) -> Result<(), String> {
        self.end()?;
        self.follows = Some(address.into());
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.end()
    }

    fn hand(&mut self, _address: &str) -> Result<(), String> {
        self.end()
    }
}
