//! What this host's agent knows, as a [`View`].

use crate::judge::{Host, Process, View};
use anyhow::{Result, bail};
use fide_client::Connection;
use fide_client::wire::control::{HistoryEvent, Reply, Request, Status};
use fide_client::wire::level::Level;
use fide_client::wire::verdict::Cause;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

/// Events of which words are kept.
const RECENT: u64 = 512;

/// What events say of hosts and processes: words, and whether a silent one was fenced.
#[derive(Default)]
pub struct Told {
    /// By name and incarnation. `None`: the history does not know.
    silences: BTreeMap<(String, u32), Option<(bool, String)>>,
    /// By host and process.
    ends: BTreeMap<(String, String), String>,
}

/// In words, with what `fide explain` takes.
fn words(event: &HistoryEvent) -> String {
    match event.unique_id() {
        Some(id) => format!("{} (verdict {id})", event.text),
        None => event.text.clone(),
    }
}

impl Told {
    /// Takes note of an event.
    pub fn note(&mut self, event: &HistoryEvent) {
        if event.level() != Level::Failure {
            return;
        }
        match &event.app {
            Some(app) => {
                self.ends.insert((event.node.clone(), app.clone()), words(event));
            }
            None if event.cause == Cause::SilentHost => {
                let said = Some((event.is_fenced(), words(event)));
                self.silences.insert((event.node.clone(), event.incarnation), said);
            }
            None => {}
        }
    }
}

/// Calls `each` with the newest events, and with those that follow until the connection ends or `each` returns false.
///
/// # Errors
/// That it has ended.
pub fn follow(socket: Option<&Path>, each: &mut dyn FnMut(HistoryEvent) -> bool) -> Result<()> {
    let connection = Connection::open(socket)?;
    let mut reply = connection.request(&Request::Events { from: 0, last: RECENT, follow: true })?.reply;
    loop {
        match reply {
            Reply::Event(event) => {
                let go_on = each(*event);
                if !go_on {
                    return Ok(());
                }
            }
            Reply::Error(refused) => bail!("{refused:?}"),
            _ => {}
        }
        reply = connection.next_reply()?.reply;
    }
}

/// Looks a silence up that was told before the newest events.
fn look_up(connection: &Connection, host: &str, incarnation: u32) -> Result<Option<(bool, String)>> {
    let mut found = None;
    let mut reply = connection.request(&Request::Events { from: 0, last: 0, follow: false })?.reply;
    loop {
        match reply {
            Reply::Event(e)
                if e.cause == Cause::SilentHost && e.app.is_none() && e.node == host && e.incarnation == incarnation =>
            {
                found = Some((e.is_fenced(), words(&e)));
            }
            Reply::EventsEnd { .. } => return Ok(found),
            Reply::Error(refused) => bail!("{refused:?}"),
            _ => {}
        }
        reply = connection.next_reply()?.reply;
    }
}

/// What the agent knows now; `None` while this host is fenced: others have taken over, and it has nothing to say.
///
/// # Errors
/// That the agent does not answer.
pub fn view(socket: Option<&Path>, told: &mut Told) -> Result<Option<View>> {
    let connection = Connection::open(socket)?;
    let status = match connection.request(&Request::Status)?.reply {
        Reply::Status(status) => *status,
        other => bail!("an answer to another question: {other:?}"),
    };
    for host in status.hosts.iter().filter(|h| h.state == Cause::SilentHost.name()) {
        if let Entry::Vacant(unknown) = told.silences.entry((host.name.clone(), host.incarnation)) {
            // In a history that is not kept for ever it may be missing: then nothing is known of its fence.
            unknown.insert(look_up(&Connection::open(socket)?, &host.name, host.incarnation)?);
        }
    }
    Ok(made_of(&status, told))
}

fn made_of(status: &Status, told: &Told) -> Option<View> {
    if status.fence.as_ref().is_some_and(|fence| fence.is_closed()) {
        return None;
    }
    let processes = |host: &str, all: &mut dyn Iterator<Item = (&str, &str)>| {
        let mut processes: BTreeMap<String, Process> = BTreeMap::new();
        for (name, state) in all {
            // Of a name there may be one that runs, and ends of former ones.
            if state == "pending" || processes.get(name).is_some_and(|known| matches!(known.state.as_str(), "alive" | "hung")) {
                continue;
            }
            let why = if state == "alive" { None } else { told.ends.get(&(host.to_owned(), name.to_owned())) };
            processes.insert(name.into(), Process { state: state.into(), why: why.cloned().unwrap_or_default() });
        }
        processes
    };
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    for host in &status.hosts {
        let silence = told.silences.get(&(host.name.clone(), host.incarnation)).cloned().flatten();
        let is_silent = host.state == Cause::SilentHost.name();
        let (is_fenced, why) = silence.filter(|_| is_silent).unwrap_or_default();
        let processes = processes(&host.name, &mut host.apps.iter().map(|a| (a.name.as_str(), a.state.as_str())));
        hosts.insert(host.name.clone(), Host { state: host.state.clone(), is_fenced, why, processes });
    }
    let own = processes(&status.node, &mut status.watched.iter().map(|w| (w.name.as_str(), w.state.as_str())));
    hosts.insert(status.node.clone(), Host { state: "alive".into(), processes: own, ..Host::default() });
    let maintenance = status.maintenance.iter().map(|m| m.target.clone()).collect();
    Some(View { hosts, maintenance })
}
