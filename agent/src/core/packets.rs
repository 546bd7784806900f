//! Packets that can wait a little: each goes to the part that its kind is for.

use super::Core;
use crate::clock::now_ns;
use fide_wire::event::{Record, RecordKind};
use fide_wire::packet::{Kind, Packet};

impl Core {
    /// Where sockets receive, what they hold comes first: notices among it must not wait for the next turn.
    pub(super) fn poll_sockets(&mut self) {
        if self.receiver.needs_sockets() {
            let sent = (self.sent.number, self.sent.event_number);
            let (node, incarnation) = (self.start.node, self.start.incarnation);
            let me = crate::receive_userspace::Me { cluster: self.start.cluster, node, incarnation, sent };
            self.receiver.poll_sockets(&self.lane, &me, &self.start.keys);
        }
    }

    pub(super) fn drain_inbox(&mut self, most: usize) {
        let keys = self.start.keys;
        for _ in 0..most {
            let Some((head, bytes)) = self.receiver.next_packet() else { return };
            match fide_wire::packet::decode(&bytes, self.start.cluster, &keys) {
                Ok(packet) => self.packet(&head, &packet, now_ns()),
                Err(reason) => self.receiver.count_refused(reason),
            }
        }
    }

    fn packet(&mut self, head: &Record, packet: &Packet<'_>, now: u64) {
        if packet.header.sender == self.start.node {
            return self.own_name(packet, now);
        }
        match packet.header.kind {
            Kind::Heartbeat => self.piggyback(head, packet, now),
            Kind::Message => self.segment_came(head, &packet.header, packet.body, now),
            Kind::Copy => self.copy_came(head, &packet.header, packet.body, now),
            Kind::Introduction => self.introduced(head, &packet.header, packet.body, now),
            Kind::Hello | Kind::Pull | Kind::Rows => self.frame_came(head, &packet.header, packet.body, now),
            Kind::PathReport => self.path_report(&packet.header.frame(), packet.body, now),
            Kind::Notice | Kind::Leave => {} // the urgent ring's
        }
    }

    fn piggyback(&mut self, head: &Record, packet: &Packet<'_>, now: u64) {
        let Some(slot) = self.slot(packet.header.sender) else { return };
        let Some(peer) = self.peers[slot].as_mut() else { return };
        if !packet.items.is_empty() {
            let is_believed = peer.incarnation == packet.header.incarnation && !peer.condemned && !peer.left;
            if is_believed && peer.first_piggyback(packet.header.number) {
                self.rides_came(packet, now);
            }
            return;
        }
        let Some((app, message)) = packet.body.split_at_checked(2) else { return };
        let low = u16::from_be_bytes([app[0], app[1]]);
        let Some(app) = peer.apps.iter().rev().find(|(n, a)| **n as u16 == low && a.ended.is_none()).map(|(n, _)| *n) else {
            return;
        };
        if !peer.first_piggyback(packet.header.number) {
            return;
        }
        let record = Record { kind: RecordKind::Piggyback as u16, app, ..*head };
        let rings = self.subscribers.rings(packet.header.sender, app) & self.subscribers.listeners();
        if rings != 0 {
            self.subscribers.publish(rings, &record, message, false, self.receiver.mechanism());
        }
    }
}
