//! The status page: everything the agent knows now, in one value.
//!
//! The loop copies rows of fixed size, a bounded number at a time, into room that the control thread brings; the control thread makes words of them. So a
//! status of thousands of processes holds up nothing that is urgent. Between two pieces something may change: each row is as it was when it was copied.

use crate::clock::now_ns;
use crate::core::requests::Request;
use crate::core::snapshot::{AppRow, Head, PathRow};
use crate::handle::LoopHandle;
use crate::watchlist::{ENDED_SHOWN_NS, WatchRow};
use fide_wire::PATHS;
use fide_wire::control::{AgentStatus, AppStatus, HostStatus, LocalPath, PathAnswerer, Status, Unheard, WatchStatus};
use fide_wire::packet::Refusal;
use fide_wire::verdict::Cause;
use std::collections::BTreeMap;

/// Hosts copied at a time.
const HOSTS_AT_ONCE: usize = 8;
/// Processes copied at a time.
const APPS_AT_ONCE: usize = 128;

/// What the control thread knows and the loop does not.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The cluster's name.
    pub cluster: String,
    /// What fails together with this host.
    pub zone: String,
    /// `shared` or `dedicated`.
    pub profile: String,
    /// Interfaces by path.
    pub interfaces: Vec<String>,
    /// When the agent started (CLOCK_MONOTONIC).
    pub started_ns: u64,
}

/// What is shown of processes, which come in the order of their numbers: the live ones, and of each name that has none the last that ended, for a while. `of`
/// gives a row's name, and when its process ended.
pub fn shown<R>(rows: Vec<R>, now_ns: u64, of: impl Fn(&R) -> (String, Option<u64>)) -> Vec<R> {
    let newest: BTreeMap<String, usize> = rows.iter().enumerate().map(|(at, row)| (of(row).0, at)).collect();
    let is_shown = |(at, row): &(usize, R)| match of(row) {
        (_, None) => true,
        (name, Some(ended_ns)) => newest.get(&name) == Some(at) && now_ns.saturating_sub(ended_ns) < ENDED_SHOWN_NS,
    };
    rows.into_iter().enumerate().filter(is_shown).map(|(_, row)| row).collect()
}

/// Adds the watches that wait for their processes: one row a name, with what is known of the process before.
pub fn with_pending(status: &mut Status, pending: Vec<WatchStatus>) {
    for mut row in pending {
        // It may be there again by now.
        let Some(at) = status.watched.iter().position(|w| w.name == row.name) else {
            status.watched.push(row);
            continue;
        };
        let former = &mut status.watched[at];
        if former.state == "alive" || former.state == Cause::Hung.name() {
            continue;
        }
        row.ended = former.ended;
        let last = format!("the last one: {}", former.state);
        row.why = if row.why.is_empty() { last } else { format!("{last}; {}", row.why) };
        *former = row;
    }
}

impl LoopHandle {
    /// Everything known now. `None` when the loop has ended or is stuck.
    #[must_use]
    pub fn status(&self, about: &About) -> Option<Status> {
        let mut status = head(*self.ask(Request::StatusHead)?, about);
        let paths = about.interfaces.len().min(PATHS);
        let (mut at, mut unheard, mut names) = (Some(0), Vec::new(), BTreeMap::new());
        while let Some(from) = at {
            let rows = Vec::with_capacity(HOSTS_AT_ONCE);
            let (rows, next) = self.ask(|answer| Request::HostRows { from, rows, answer })?;
            at = next;
            for row in rows {
                names.insert(row.slot, String::from(row.name));
                unheard.push((row.unheard, row.is_deaf_to_us));
                let apps = self.apps(row.slot, row.node)?;
                status.hosts.push(HostStatus {
                    name: row.name.into(),
                    node_id: row.node,
                    incarnation: row.incarnation,
                    state: row.state.into(),
                    heard_by: row.heard_by.into_iter().map(Into::into).collect(),
                    timeout_ns: row.timeout_ns,
                    paths: row.paths[..paths].to_vec(),
                    apps,
                    fence: row.fence,
                    reported_age_ns: (row.reported_ns != 0).then(|| now_ns().saturating_sub(row.reported_ns)),
                    unheard: Vec::new(),
                    agent: row.agent.map(|agent| AgentStatus {
                        version: agent.version.into(),
                        zone: agent.zone.into(),
                        groups: agent.groups.into(),
                        groups_running: agent.running.into(),
                    }),
                });
            }
        }
        for (host, (slots, is_deaf_to_us)) in status.hosts.iter_mut().zip(unheard) {
            let on = |lacks: &dyn Fn(usize) -> bool| (0..paths).filter(|path| lacks(*path)).map(|path| path as u8).collect();
            let others = names.iter().map(|(slot, name)| Unheard {
                host: name.clone(),
                paths: on(&|path| slots[path][slot / 64] & 1 << (slot % 64) != 0),
            });
            let us = Unheard { host: status.node.clone(), paths: on(&|path| is_deaf_to_us[path]) };
            host.unheard = others.chain([us]).filter(|unheard| !unheard.paths.is_empty()).collect();
        }
        status.watched = shown(self.watched()?, now_ns(), WatchRow::shown).into_iter().map(Into::into).collect();
        Some(status)
    }

    /// Every watched process of this host, and those that have just ended.
    #[must_use]
    pub fn watched(&self) -> Option<Vec<WatchRow>> {
        let (mut at, mut watched) = (Some(0), Vec::new());
        while let Some(from) = at {
            let rows = Vec::with_capacity(APPS_AT_ONCE);
            let (rows, next) = self.ask(|answer| Request::WatchRows { from, rows, answer })?;
            at = next;
            watched.extend(rows);
        }
        Some(watched)
    }

    fn apps(&self, slot: usize, node: u32) -> Option<Vec<AppStatus>> {
        let (mut at, mut apps) = (Some(0), Vec::new());
        while let Some(from) = at {
            let rows = Vec::with_capacity(APPS_AT_ONCE);
            let (rows, next) = self.ask(|answer| Request::AppRows { slot, node, from, rows, answer })?;
            at = next;
            apps.extend(rows);
        }
        let shown = shown(apps, now_ns(), |r: &AppRow| (r.name.into(), r.ended_ns));
        Some(shown.into_iter().map(|r| AppStatus { name: r.name.into(), app: r.app, state: r.state.into() }).collect())
    }
}

/// What is said of this host, without other hosts and processes.
fn head(head: Head, about: &About) -> Status {
    let path = |(path, (interface, row)): (usize, (&String, PathRow))| LocalPath {
        path: path as u8,
        interface: interface.clone(),
        address: row.source.map_or_else(String::new, |a| a.to_string()),
        up: row.up,
        answerers: row.answerers.into_iter().map(|(a, answers)| PathAnswerer { address: a.to_string(), answers }).collect(),
    };
    Status {
        node: head.name,
        node_id: head.node,
        cluster: about.cluster.clone(),
        zone: about.zone.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        incarnation: head.incarnation,
        uptime_s: now_ns().saturating_sub(about.started_ns) / 1_000_000_000,
        profile: about.profile.clone(),
        receive: head.receive.into(),
        send: head.send.to_string(),
        exit_watch: head.exit_watch.into(),
        paths: about.interfaces.iter().zip(head.paths).enumerate().map(path).collect(),
        contract: head.contract,
        hosts: Vec::new(),
        watched: Vec::new(),
        refused: Refusal::ALL.iter().zip(head.refused).map(|(r, n)| (r.name().to_string(), n)).collect(),
        unwanted: head.unwanted,
        heartbeats_sent: head.heartbeats_sent,
        silences_spared: head.silences.spared,
        silences_vetoed: head.silences.vetoes,
        authenticated: head.authenticated,
        fence: head.fence,
        gates: Vec::new(),
        maintenance: Vec::new(),
        keys: Vec::new(), // the control thread's
        groups: head.groups as u32,
        groups_running: head.running as u32,
    }
}
