//! The interfaces of the paths: gone, back, plugged.

use super::Core;
use crate::clock::now_ns;
use crate::shares::EventSource;
use fide_lane::PathMode;
use fide_wire::event::{Record, RecordKind};
use fide_wire::verdict::{Cause, Grade};

/// The event's sentence: which interface of the host, and what it is for.
fn interface_text(interface: Option<&str>, path: u8, host: &str, is_back: bool) -> String {
    let what = if is_back { "came back" } else { "went away" };
    match interface {
        Some(interface) => format!("interface {interface} (path {path}) of {host} {what}"),
        None => format!("the interface of path {path} of {host} {what}"),
    }
}

impl Core {
    /// The interface of a path was looked at: it is used anew if it is another than the one in use.
    pub fn path_seen(&mut self, path: u8, seen: Option<fide_lane::Seen>) {
        let is_missed = self.lane.ifindex(path).is_some() && !self.receiver.attached(path);
        if self.lane.differs(path, seen.as_ref()) || is_missed {
            self.refresh_path(path);
        } else {
            self.look_at_carrier(path.into(), now_ns());
        }
    }

    fn refresh_path(&mut self, path: u8) {
        let now = now_ns();
        let before = self.lane.ifindex(path);
        let up_before = self.is_usable(path);
        if let Err(e) = self.lane.refresh(path) {
            tracing::info!("path {path}: {e}");
        }
        if let Some(prober) = self.prober.as_mut()
            && let Err(e) = prober.refresh(path)
        {
            tracing::debug!("probes on path {path}: {e}");
        }
        let after = self.lane.ifindex(path);
        self.receiver.set_mac(usize::from(path), self.lane.mac(path));
        if after != before || (after.is_some() && !self.receiver.attached(path)) {
            if let Err(why) = self.receiver.reattach(path, after) {
                self.receive_otherwise(path, &why.to_string());
            }
            self.open_drops(path);
            self.node.probing_mut().forget_interface(usize::from(path));
        }
        if let Err(e) = self.wait_for_descriptors() {
            tracing::error!("path {path}: {e}");
        }
        let up = self.is_usable(path);
        if up != up_before || after != before {
            let (name, incarnation) = (self.start.name.clone(), self.start.incarnation);
            let text = interface_text(self.lane.interface(path), path, &name, up);
            self.tell_text(Cause::Interface, Grade::Certain, (&name, incarnation), i32::from(up), text, EventSource::OWN, now);
        }
        self.look_at_carrier(usize::from(path), now);
        self.regrant();
        self.host_changed(now);
    }

    /// Whether the path sends and receives.
    pub(super) fn is_usable(&self, path: u8) -> bool {
        self.lane.mode(path) != PathMode::Down && self.receiver.attached(path)
    }

    /// The receive program cannot be put on a path's interface: sockets receive on all paths from now on, as at the start, unless the
    /// configuration forbids it.
    fn receive_otherwise(&mut self, path: u8, why: &str) {
        if !self.receiver.may_use_sockets() {
            tracing::error!("path {path} receives nothing until this is mended: {why}");
            return;
        }
        self.receiver.detach();
        // What the program has taken, it has delivered, too: that is over before sockets receive.
        self.send_urgent(u64::MAX);
        self.receiver.use_sockets(std::array::from_fn(|path| self.lane.ifindex(path as u8)));
        self.lane.set_receiving(true);
        let text = format!("receiving by UDP sockets on all paths, until the agent is restarted: {why}");
        tracing::warn!("{text}");
        self.tell_local(EventSource::OWN, 0, text);
    }

    pub(super) fn look_at_carrier(&mut self, path: usize, now: u64) {
        self.carriers[path] = self.lane.carrier(path as u8);
        self.node.detector_mut().carrier(path, self.carriers[path], now);
    }

    /// The interfaces' smallest MTU may have changed: processes that were granted more are told (Listing 1, `on_pbsize_changed`).
    pub(super) fn regrant(&mut self) {
        let most = self.piggyback_max();
        for (app, ring) in self.watchlist.shrink_grants(most) {
            let record = Record {
                kind: RecordKind::PiggybackSizeChanged as u16,
                node: self.start.node,
                app,
                code: most as i32,
                event_ns: now_ns(),
                ..Record::default()
            };
            self.subscribers.publish(1 << ring, &record, &[], false, self.receiver.mechanism());
        }
    }

    /// The piggyback size this agent can grant.
    #[must_use]
    pub fn piggyback_max(&self) -> u32 {
        self.lane.piggyback_max() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::interface_text;

    #[test]
    fn an_event_of_an_interface_names_it() {
        assert_eq!(interface_text(Some("net1"), 1, "h3", false), "interface net1 (path 1) of h3 went away");
        assert_eq!(interface_text(Some("net1"), 1, "h3", true), "interface net1 (path 1) of h3 came back");
        assert_eq!(interface_text(None, 0, "h3", false), "the interface of path 0 of h3 went away");
    }
}
