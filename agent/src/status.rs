//! The status page: everything the agent knows now, in one value.
//!
//! The loop copies rows of fixed size, a bounded number at a time, into room that the control thread brings; the control thread makes words of them. So a
//! status of thousands of processes holds up nothing that is urgent. Between two pieces something may change: each row is as it was when it was copied.

use crate::clock::now_ns;
use crate::core::Core;
use crate::handle::LoopHandle;
use crate::watchlist::{ENDED_SHOWN_NS, Name, WatchRow};
use fide_proto::detector::{AppState, State};
use fide_wire::PATHS;
use fide_wire::control::{AppStatus, HostStatus, LocalPath, PathAnswerer, PathStatus, Status, WatchStatus};
use fide_wire::packet::Refusal;
use fide_wire::verdict::{Cause, FencePromise};
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
    /// `shared` or `dedicated`.
    pub profile: String,
    /// Interfaces by path.
    pub interfaces: Vec<String>,
    /// When the agent started (CLOCK_MONOTONIC).
    pub started_ns: u64,
}

/// What is copied of another host.
#[derive(Clone, Debug)]
pub struct HostRow {
    slot: usize,
    name: Name,
    node: u32,
    incarnation: u32,
    state: &'static str,
    timeout_ns: u64,
    paths: [PathStatus; PATHS],
    fence: Option<FencePromise>,
}

/// What is copied of a process of another host.
#[derive(Clone, Copy, Debug)]
pub struct AppRow {
    app: u32,
    name: Name,
    state: &'static str,
    ended_ns: Option<u64>,
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
        row.why = format!("the last one is {}; {}", former.state, row.why);
        *former = row;
    }
}

impl Core {
    /// What is known of this host but for its processes.
    fn status_head(&self, about: &About) -> Status {
        let now = now_ns();
        Status {
            node: self.start.name.clone(),
            node_id: self.start.node,
            cluster: about.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.start.incarnation,
            uptime_s: now.saturating_sub(about.started_ns) / 1_000_000_000,
            profile: about.profile.clone(),
            receive: self.receiver.receive_name().into(),
            send: self.lane.mode(0).to_string(),
            exit_watch: self.receiver.exit_name().into(),
            paths: about
                .interfaces
                .iter()
                .enumerate()
                .map(|(path, interface)| LocalPath {
                    path: path as u8,
                    interface: interface.clone(),
                    address: self.lane.source(path as u8).map_or_else(String::new, |a| a.to_string()),
                    up: self.lane.carrier(path as u8),
                    answerers: self
                        .asking
                        .answerers
                        .of(path)
                        .iter()
                        .map(|a| PathAnswerer { address: a.address.to_string(), answers: a.answers(now) })
                        .collect(),
                })
                .collect(),
            contract: self.own_contract(),
            hosts: Vec::new(),
            watched: Vec::new(),
            refused: Refusal::ALL.iter().zip(self.receiver.refused()).map(|(r, n)| (r.name().to_string(), n)).collect(),
            unwanted: self.unwanted_status(now),
            heartbeats_sent: self.sent.heartbeats,
            silences_spared: self.silences().spared,
            silences_vetoed: self.silences().vetoes,
            authenticated: self.start.keys.is_secret(),
            fence: self.fence_status(),
            gates: Vec::new(),
            maintenance: Vec::new(),
            keys: Vec::new(), // the control thread's
        }
    }

    /// Copies hosts from this slot on, as many as there is room for. Gives the slot to go on with.
    fn status_hosts(&self, from: usize, rows: &mut Vec<HostRow>) -> Option<usize> {
        for slot in from..self.peers.len() {
            if rows.len() == rows.capacity() {
                return Some(slot);
            }
            rows.extend(self.host_row(slot));
        }
        None
    }

    fn host_row(&self, slot: usize) -> Option<HostRow> {
        let peer = self.peers.get(slot)?.as_ref()?;
        let now = now_ns();
        let row = self.receiver.peer(slot);
        let path_status = |path: usize| {
            let p = &row.path[path];
            let contract = peer.contract[path];
            let age_ns = if p.arrived_ns == 0 { u64::MAX } else { now.saturating_sub(p.arrived_ns) };
            let window = peer.window[path].unwrap_or_default();
            PathStatus {
                up: age_ns <= contract.timeout_ns() && !peer.condemned,
                last_number: p.number,
                age_ns,
                lost: p.lost,
                contract,
                margin_ns: window.margin_ns,
                jitter_ns: [window.jitter.p50_ns, window.jitter.p99_ns, window.jitter.p999_ns, window.jitter.max_ns],
            }
        };
        Some(HostRow {
            slot,
            name: peer.name.as_str().into(),
            node: peer.node,
            incarnation: peer.incarnation,
            state: self.state_of(peer.node).map_or("unknown", |s| s.name()),
            timeout_ns: self.timeout_ns(peer.node).unwrap_or_default(),
            paths: std::array::from_fn(path_status),
            fence: self.promise_of(peer.node),
        })
    }

    /// Copies the processes of a host from this one on, as many as there is room for. Gives the one to go on with.
    fn status_apps(&self, slot: usize, node: u32, from: u32, rows: &mut Vec<AppRow>) -> Option<u32> {
        let peer = self.peers.get(slot)?.as_ref().filter(|p| p.node == node)?;
        let is_restarting = self.state_of(node) == Some(State::Restarting);
        for (app, a) in peer.apps.range(from..) {
            if rows.len() == rows.capacity() {
                return Some(*app);
            }
            let state = match a.ended {
                Some((cause, _)) => cause.name(),
                None if peer.condemned || peer.left || is_restarting => "unobserved",
                None if matches!(self.app_judged(node, *app), Some(AppState::Hung { .. })) => Cause::Hung.name(),
                None => "alive",
            };
            rows.push(AppRow { app: *app, name: a.name.as_str().into(), state, ended_ns: a.ended.map(|(_, at_ns)| at_ns) });
        }
        None
    }
}

impl LoopHandle {
    /// Everything known now. `None` when the loop has ended or is stuck.
    #[must_use]
    pub fn status(&self, about: &About) -> Option<Status> {
        let head = about.clone();
        let mut status = self.ask(move |core| core.status_head(&head))?;
        let paths = about.interfaces.len().min(PATHS);
        let mut at = Some(0);
        while let Some(from) = at {
            let mut rows = Vec::with_capacity(HOSTS_AT_ONCE);
            let rows = self.ask(move |core| {
                let next = core.status_hosts(from, &mut rows);
                (rows, next)
            })?;
            at = rows.1;
            for row in rows.0 {
                let apps = self.apps(row.slot, row.node)?;
                status.hosts.push(HostStatus {
                    name: row.name.into(),
                    node_id: row.node,
                    incarnation: row.incarnation,
                    state: row.state.into(),
                    timeout_ns: row.timeout_ns,
                    paths: row.paths[..paths].to_vec(),
                    apps,
                    fence: row.fence,
                });
            }
        }
        let (mut at, mut watched) = (Some(0), Vec::new());
        while let Some(from) = at {
            let mut rows: Vec<WatchRow> = Vec::with_capacity(APPS_AT_ONCE);
            let rows = self.ask(move |core| {
                let next = core.watchlist.rows(from, &mut rows);
                (rows, next)
            })?;
            at = rows.1;
            watched.extend(rows.0);
        }
        status.watched = shown(watched, now_ns(), WatchRow::shown).into_iter().map(Into::into).collect();
        Some(status)
    }

    fn apps(&self, slot: usize, node: u32) -> Option<Vec<AppStatus>> {
        let mut apps = Vec::new();
        let mut at = Some(0);
        while let Some(from) = at {
            let mut rows = Vec::with_capacity(APPS_AT_ONCE);
            let rows = self.ask(move |core| {
                let next = core.status_apps(slot, node, from, &mut rows);
                (rows, next)
            })?;
            at = rows.1;
            apps.extend(rows.0);
        }
        let shown = shown(apps, now_ns(), |r: &AppRow| (r.name.into(), r.ended_ns));
        Some(shown.into_iter().map(|r| AppStatus { name: r.name.into(), app: r.app, state: r.state.into() }).collect())
    }
}
