//! What checks of applications' heartbeats want of the loop: questions on the paths, and what is known of a peer.

use super::Core;
use crate::check::{Answers, Found, Whom, app_word};
use crate::clock::now_ns;
use crate::watchlist::Name;
use fide_wire::PATHS;
use fide_wire::control::CheckedPeer;
use fide_wire::verdict::Cause;

impl Core {
    /// Asks whoever may answer on these paths, so that their queues show that they are empty.
    pub fn ask_for_barriers(&mut self, paths: [bool; PATHS]) {
        if self.prober.is_none() {
            return;
        }
        let now = now_ns();
        let (node, mut view) = self.node_and_view();
        node.ask_for_barriers(paths, &mut view, now);
        self.act(None, now);
    }

    /// What came out of the queues, and whether they are told apart.
    #[must_use]
    pub fn answers(&self) -> (Answers, bool) {
        (self.answers.clone(), self.receiver.offers_barriers())
    }

    /// Heartbeats that never came, by whose they were and the path: of all its incarnations, so that the numbers never fall. As many as there is room for.
    pub(super) fn lane_losses(&self, rows: &mut Vec<(Name, [u64; PATHS])>) {
        for (slot, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer.as_ref().filter(|_| rows.len() < rows.capacity()) else { continue };
            rows.push((peer.name.as_str().into(), peer.lost(&self.receiver.peer(slot))));
        }
    }

    /// What this agent knows of somebody; whether it is certain that the process has ended since.
    #[must_use]
    pub fn known_of(&self, whom: &Whom, since_ns: u64) -> (Option<CheckedPeer>, bool) {
        use fide_proto::detector::{AppState, State};
        let peer = match whom {
            Whom::Named { host, .. } => self.peers.iter().flatten().find(|p| p.name == *host),
            Whom::Address(address) => self.peers.iter().flatten().find(|p| p.addresses.contains(&Some(*address))),
        };
        let wanted = if let Whom::Named { app, .. } = whom { app.as_deref() } else { None };
        let Some(peer) = peer else {
            let Whom::Named { host, .. } = whom else { return (None, false) };
            if *host != self.start.name {
                return (None, false);
            }
            let ended = wanted.and_then(|name| self.watchlist.last_named(name));
            let found = ended.map(|w| Found {
                ended: w.ended.map(|(cause, _)| (cause, w.ended_ns)),
                hung: w.hung.is_some(),
                observed: true,
            });
            let (app_state, certain) = app_word(wanted, found, since_ns);
            let (host, incarnation) = (host.clone(), self.start.incarnation);
            let own = CheckedPeer {
                host,
                node: self.start.node,
                incarnation,
                host_state: "alive".into(),
                app_state,
                ..CheckedPeer::default()
            };
            return (Some(own), certain);
        };
        let state = self.state_of(peer.node);
        // The newest of that name.
        let app = wanted.and_then(|name| peer.apps.iter().rev().find(|(_, a)| a.name == name));
        let hung = |app: u32| matches!(self.app_judged(peer.node, app), Some(AppState::Hung { .. }));
        let observed = state.is_some_and(State::is_observed);
        let found = app.map(|(id, a)| Found { ended: a.ended, hung: hung(*id), observed });
        let (app_state, certain) = app_word(wanted, found, since_ns);
        let fence = self.promise_of(peer.node);
        let known = CheckedPeer {
            host: peer.name.clone(),
            node: peer.node,
            incarnation: peer.incarnation,
            host_state: match self.node.detector().heard_by(peer.node) {
                Some(_) => Cause::Unreachable.name().into(),
                None => state.map_or("unknown", State::name).into(),
            },
            app_state,
            fence,
            fenced: fence.is_some() && state == Some(State::Silent) && self.node.is_fenced(peer.node),
        };
        (Some(known), certain)
    }
}
