//! The status page: everything the agent knows now, in one value.

use crate::core::{Core, now_ns};
use fide_proto::detector::AppState;
use fide_wire::PATHS;
use fide_wire::control::{AppStatus, HostStatus, LocalPath, PathAnswerer, PathStatus, Status};
use fide_wire::packet::Refusal;
use fide_wire::verdict::Cause;

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

impl Core {
    /// Everything known now.
    #[must_use]
    pub fn status(&self, about: &About) -> Status {
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
                        .answerers
                        .of(path)
                        .iter()
                        .map(|a| PathAnswerer { address: a.address.to_string(), answers: a.answers(now) })
                        .collect(),
                })
                .collect(),
            contract: self.own_contract(),
            hosts: (0..self.peers.len()).filter_map(|slot| self.host_status(slot, about.interfaces.len(), now)).collect(),
            watched: self.watchlist.status(),
            refused: Refusal::ALL.iter().zip(self.receiver.refused()).map(|(r, n)| (r.name().to_string(), n)).collect(),
            heartbeats_sent: self.heartbeats,
            silences_spared: self.silences().spared,
            silences_vetoed: self.silences().vetoes,
            authenticated: self.start.keys.is_secret(),
            fence: self.fence_status(),
            gates: Vec::new(), // the control thread's
        }
    }

    fn host_status(&self, slot: usize, paths: usize, now: u64) -> Option<HostStatus> {
        let peer = self.peers.get(slot)?.as_ref()?;
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
        Some(HostStatus {
            name: peer.name.clone(),
            node_id: peer.node,
            incarnation: peer.incarnation,
            state: self.state_of(peer.node).map_or("unknown", |s| s.name()).into(),
            timeout_ns: self.timeout_ns(peer.node).unwrap_or_default(),
            paths: (0..paths.min(PATHS)).map(path_status).collect(),
            fence: self.promise_of(peer.node),
            apps: peer
                .apps
                .iter()
                .map(|(app, a)| AppStatus {
                    name: a.name.clone(),
                    app: *app,
                    state: match a.ended {
                        Some((cause, _)) => cause.name().into(),
                        None if peer.condemned || peer.left => "unobserved".into(),
                        None if matches!(self.app_judged(peer.node, *app), Some(AppState::Hung { .. })) => {
                            Cause::Hung.name().into()
                        }
                        None => "alive".into(),
                    },
                })
                .collect(),
        })
    }
}
