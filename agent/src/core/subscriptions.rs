//! Applications' rings: what they monitor, and what they are told first.

use super::{Core, Introduced};
use crate::clock::now_ns;
use crate::peers::Peer;
use crate::subscribers::{Made, Target, Want, key};
use fide_wire::control::{Reply, TargetState};
use fide_wire::event::{Record, RecordKind};
use fide_wire::verdict::{Cause, Grade};

impl Core {
    /// A new subscriber's ring.
    pub fn subscribe(&mut self, index: u32, made: Made) {
        if let (Made::Socket(_), Some(m)) = (&made, self.receiver.mechanism()) {
            m.leave_piggybacks(true); // before the kernel stops serving those who asked for them
        }
        self.subscribers.add(index, made);
    }

    /// The kernel, straight from the packet, unless somebody's ring is a socket: then all are served from here, in order.
    pub(super) fn who_delivers_piggybacks(&self) {
        if let Some(m) = self.receiver.mechanism() {
            m.leave_piggybacks(self.subscribers.has_sockets());
        }
    }

    /// A subscriber is gone.
    pub fn unsubscribe(&mut self, ring: u32) {
        self.watchlist.ring_gone(ring);
        self.subscribers.remove(ring);
        self.interests.changed(now_ns());
    }

    /// Starts monitoring, and says what is known of the target.
    ///
    /// A host's processes, or all, are introduced before ([`Core::introduce`]): whom names belong to may end as soon as somebody listens.
    pub fn monitor(&mut self, ring: u32, target: Target, want: Want) -> Reply {
        let found = self.resolve(&target);
        self.subscribers.want(ring, target.clone(), want);
        self.interests.changed(now_ns());
        if let Some((node, app)) = found {
            self.subscribers.listen(key(node, app), ring, want.pbsize, self.receiver.mechanism());
            self.introduce_hung(1 << ring, node, app, now_ns());
        }
        let (node, app) = found.unwrap_or_else(|| match &target {
            Target::Host(host) | Target::Process(_, host) => (fide_wire::name_id(host), 0),
            Target::Everything => (0, 0),
        });
        let pbsize = self.piggyback_size(node, app);
        let timeout_ns = self.node.detector().timeout_ns(node).unwrap_or_else(|| self.own_contract().timeout_ns());
        let (state, end) = self.target_state(&target);
        let alive = matches!(state, TargetState::Alive | TargetState::Hung);
        Reply::Monitored { node, app, pbsize, timeout_ns, alive, state: Some(state), end }
    }

    /// Tells a new subscriber to a host or to everything which hosts and processes there are, from this one on and at most so many: from then on it
    /// knows them by name. Gives the place where to go on; none at the end.
    pub fn introduce(&mut self, ring: u32, target: &Target, from: Introduced, most: usize) -> Option<Introduced> {
        let wanted = |host: &str| match target {
            Target::Everything => true,
            Target::Host(h) => h == host,
            Target::Process(..) => false,
        };
        let now = now_ns();
        let mut at = from;
        let mut left = most;
        while left > 0 {
            // Hosts, then the processes of this one, then those of the others.
            let (node, incarnation, app, name) = match at {
                Introduced::Hosts(slot) => {
                    let mut peers = self.peers.iter().enumerate().skip(slot);
                    let known = |p: &&Peer| wanted(&p.name) && !p.condemned && !p.left;
                    let Some((slot, peer)) = peers.find_map(|(slot, p)| Some((slot, p.as_deref().filter(known)?))) else {
                        at = Introduced::Own(1);
                        continue;
                    };
                    at = Introduced::Hosts(slot + 1);
                    (peer.node, peer.incarnation, 0, peer.name.clone())
                }
                Introduced::Own(from) => {
                    let own = self.watchlist.alive_from(from).next().filter(|_| wanted(&self.start.name));
                    let Some((app, w)) = own else {
                        at = Introduced::Others(0, 1);
                        continue;
                    };
                    at = Introduced::Own(app + 1);
                    (self.start.node, self.start.incarnation, app, w.name.clone())
                }
                Introduced::Others(slot, from) => {
                    let peer = match self.peers.get(slot) {
                        None => return None,
                        Some(peer) => peer.as_deref().filter(|p| wanted(&p.name) && !p.condemned && !p.left),
                    };
                    let next = peer.and_then(|p| Some((p, p.apps.range(from..).find(|(_, a)| a.ended.is_none())?)));
                    let Some((peer, (app, a))) = next else {
                        at = Introduced::Others(slot + 1, 1);
                        continue;
                    };
                    at = Introduced::Others(slot, app + 1);
                    (peer.node, peer.incarnation, *app, a.name.clone())
                }
            };
            let record = self.host_record(Cause::Monitored, Grade::Certain, node, incarnation, now);
            let kind = if app == 0 { RecordKind::Host } else { RecordKind::Process };
            let record = Record { kind: kind as u16, app, ..record };
            self.subscribers.publish(1 << ring, &record, name.as_bytes(), false, self.receiver.mechanism());
            self.introduce_hung(1 << ring, node, app, now);
            left -= 1;
        }
        Some(at)
    }

    /// The largest piggyback that a process sends.
    fn piggyback_size(&self, node: u32, app: u32) -> u32 {
        if node == self.start.node {
            return self.watchlist.get(app).map_or(0, |w| w.pbsize);
        }
        let peer = self.slot(node).and_then(|s| self.peers[s].as_ref());
        peer.and_then(|p| p.apps.get(&app)).map_or(0, |a| a.pbsize)
    }

    /// Ends monitoring; `false` when the target was not monitored.
    pub fn unmonitor(&mut self, ring: u32, target: &Target) -> bool {
        let was = self.subscribers.unwant(ring, target);
        if let Some((node, app)) = self.resolve(target) {
            self.subscribers.unlisten(key(node, app), ring, self.receiver.mechanism());
        }
        self.interests.changed(now_ns());
        was
    }

    fn resolve(&self, target: &Target) -> Option<(u32, u32)> {
        match target {
            Target::Everything => Some((0, 0)),
            Target::Host(host) if *host == self.start.name => Some((self.start.node, 0)),
            Target::Host(host) => {
                let node = fide_wire::name_id(host);
                self.slot(node).map(|_| (node, 0))
            }
            Target::Process(name, host) if *host == self.start.name => {
                self.watchlist.named(name).map(|app| (self.start.node, app))
            }
            Target::Process(name, host) => {
                let node = fide_wire::name_id(host);
                let app = self.slot(node).and_then(|s| self.peers[s].as_ref())?.named(name)?;
                Some((node, app))
            }
        }
    }
}
