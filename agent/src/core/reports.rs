//! Path reports as they come and leave, and what is measured for the contract with each host.

use super::Core;
use fide_proto::node::calibration::Breach;
use fide_proto::node::machine::contracts::Jitter;
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
                        since_group: row.since_group(),
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

    /// A second is over: what it brought of each host goes into the contract with it.
    pub(super) fn calibrate(&mut self, now: u64) {
        for slot in 0..self.peers.len() {
            let Some(node) = self.peers[slot].as_ref().map(|peer| peer.node) else { continue };
            let period_ns = self.receiver.peer(slot).period_ns.into();
            for path in 0..PATHS {
                let max_ns = self.receiver.take_jitter_max(slot, path);
                let counters = &self.receiver.jitter(slot, path);
                self.node.handle_window(node, path, &Jitter { counters, max_ns, period_ns }, now);
            }
        }
        self.act(None, now);
    }

    /// The margin of one path's contract is used up, or there is some again (DESIGN: assumptions are measured while they are relied on).
    pub(super) fn margin(&mut self, node: u32, incarnation: u32, path: usize, breach: Breach, now: u64) {
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
