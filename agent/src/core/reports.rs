//! Path reports as they come and leave, and the contract that is derived from round trips and jitter.

use super::Core;
use fide_lane::Breach;
use fide_proto::node::machine::reports::Heard;
use fide_wire::PATHS;
use fide_wire::event::Record;
use fide_wire::frame::Header;
use fide_wire::packet::Kind;
use fide_wire::verdict::{Cause, Grade};

impl Core {
    /// What another host receives of all others, and of this one.
    pub(super) fn path_report(&mut self, header: &Header, body: &[u8], now: u64) {
        // Of a host that is not known yet it says nothing.
        let _ = self.node.handle_report(header, body, now);
        self.act(None, now);
    }

    /// A heartbeat's way there and a report's way back.
    pub(super) fn round_trip(&mut self, node: u32, path: usize, ns: u64) {
        if let Some(peer) = self.slot(node).and_then(|slot| self.peers[slot].as_mut()) {
            peer.calibration[path].round_trip(ns);
        }
    }

    /// What is due of path reports: all of it once a second, and to hosts whose fences depend on it often enough for their timeouts.
    pub(super) fn send_reports(&mut self, now: u64) {
        let mut body = std::mem::take(&mut self.report_body);
        loop {
            let (peers, receiver) = (&self.peers, &self.receiver);
            let heard = |node: u32, path: usize| {
                let slot = peers.iter().position(|p| p.as_ref().is_some_and(|p| p.node == node));
                slot.map_or_else(Heard::default, |slot| {
                    let row = receiver.peer(slot).path[path];
                    Heard {
                        number: row.number,
                        arrived_ns: row.arrived_ns,
                        sent_ns: row.sent_ns,
                        jitter_max_ns: row.jitter_max_ns,
                    }
                })
            };
            if !self.node.poll_report(now, heard, &mut body) {
                break;
            }
            self.send_event(Kind::PathReport, None, &body);
        }
        self.report_body = body;
    }

    pub(super) fn calibrate(&mut self, now: u64) {
        let size = self.lane.piggyback_max() as u32;
        let mut breaches = Vec::new();
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_mut().filter(|p| !p.condemned && !p.left) else { continue };
            let period = self.receiver.peer(slot).period_ns;
            let period = if period == 0 { peer.announced.period_ns } else { period.into() };
            for path in 0..PATHS {
                let max = self.receiver.take_jitter_max(slot, path);
                peer.calibration[path].set_period(period);
                let window = peer.calibration[path].feed(&self.receiver.jitter(slot, path), max);
                breaches.extend(window.breach.map(|b| (peer.node, peer.incarnation, path, b)));
                peer.window[path] = Some(window);
                let contract = peer.calibration[path].contract(size);
                if contract != peer.contract[path] {
                    peer.contract[path] = contract;
                    // A peer the detector has forgotten has no contract to keep.
                    let _ = self.node.detector_mut().contract(peer.node, path, contract, now);
                }
            }
        }
        for (node, incarnation, path, breach) in breaches {
            self.margin(node, incarnation, path, breach, now);
        }
    }

    /// The margin of one path's contract is used up, or there is some again (DESIGN: assumptions are measured while they are relied on).
    fn margin(&mut self, node: u32, incarnation: u32, path: usize, breach: Breach, now: u64) {
        let host = self.node_name(node);
        let ms = |ns: u64| ns as f64 / 1e6;
        let (cause, text) = match breach {
            Breach::Broken { worst_ns, allowed_ns } => (
                Cause::ContractBroken,
                format!(
                    "heartbeats of {host} on path {path} were up to {:.3} ms late; its contract allows {:.3} ms",
                    ms(worst_ns),
                    ms(allowed_ns)
                ),
            ),
            Breach::Kept => (Cause::ContractKept, format!("heartbeats of {host} on path {path} keep the contract again")),
        };
        let record = Record { code: path as i32, ..self.host_record(cause, Grade::Inferred, node, incarnation, now) };
        self.publish_host(node, &host, &record);
        self.tell_text(cause, Grade::Inferred, (&host, incarnation), path as i32, text, self.source(node, 0), now);
    }
}
