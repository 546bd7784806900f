//! Sending: heartbeats, notices and every other frame, on each path.

use super::Core;
use crate::clock::now_ns;
use fide_lane::{PathMode, SendOutcome};
use fide_proto::services::groups::Departure;
use fide_wire::PATHS;
use fide_wire::event::{Record, RecordKind};
use fide_wire::mac::Keyring;
use fide_wire::packet::{Header, Kind, Notice, PACKET_MAX};

/// What has left.
#[derive(Default)]
pub(crate) struct Sent {
    /// The number of the last heartbeat, and of the last other frame.
    pub(super) number: u64,
    pub(super) event_number: u64,
    /// Heartbeats of this agent.
    pub(crate) heartbeats: u64,
    /// The last frame, by path.
    pub(super) packets: Box<Packets>,
    /// What became of its copies.
    pub(super) outcomes: [SendOutcome; PATHS],
    /// A heartbeat with a decision may leave early from then on.
    pub(super) early_ns: u64,
    /// When the last heartbeat left.
    pub(super) beaten_ns: u64,
}

pub(super) struct Packets(pub(super) [[u8; PACKET_MAX]; PATHS]);

impl Default for Packets {
    fn default() -> Self {
        Self([[0; PACKET_MAX]; PATHS])
    }
}

impl Core {
    pub(super) fn header(&self, kind: Kind, path: u8, number: u64) -> Header {
        Header {
            kind,
            path,
            key_id: 0,
            cluster: self.start.cluster,
            sender: self.start.node,
            incarnation: self.start.incarnation,
            number,
            sent_ns: now_ns(),
            period_ns: u32::try_from(self.start.period_ns).unwrap_or(u32::MAX),
            table_version: self.own_table().complete() as u32,
            more: kind == Kind::Heartbeat && self.groups.has_more(),
        }
    }

    /// The next heartbeat, with the items of groups or a piggyback.
    fn transmit_heartbeat(&mut self, body: &[u8]) -> u64 {
        let rode = self.rode;
        self.transmit_as(Kind::Heartbeat, self.sent.number, |out, header, keys| match rode {
            true => fide_wire::packet::encode_items(out, header, body, keys),
            false => fide_wire::packet::encode(out, header, None, body, keys),
        })
    }

    fn transmit(&mut self, kind: Kind, number: u64, notice: Option<&Notice>, body: &[u8]) -> u64 {
        self.transmit_as(kind, number, |out, header, keys| fide_wire::packet::encode(out, header, notice, body, keys))
    }

    /// Encodes for every path and sends with one call. Returns the stamp.
    fn transmit_as(
        &mut self,
        kind: Kind,
        number: u64,
        encode: impl Fn(&mut [u8; PACKET_MAX], &Header, &Keyring) -> Result<usize, fide_wire::packet::EncodeError>,
    ) -> u64 {
        self.sent.outcomes = [SendOutcome::default(); PATHS];
        if self.is_fenced() && !self.passes(kind) {
            return now_ns(); // as far as the gates reach, they would block it; a fenced host is not alive on the others either
        }
        let mut lens = [0; PATHS];
        let mut stamp = 0;
        for (path, length) in lens.iter_mut().enumerate() {
            let header = self.header(kind, path as u8, number);
            stamp = header.sent_ns;
            match encode(&mut self.sent.packets.0[path], &header, &self.start.keys) {
                Ok(len) => *length = len,
                Err(e) => tracing::error!("{kind:?} not sent: {e}"),
            }
        }
        let payloads = std::array::from_fn(|p| (lens[p] > 0).then(|| &self.sent.packets.0[p][..lens[p]]));
        self.receiver.note_sent(kind == Kind::Heartbeat, number);
        let turns = if kind == Kind::Heartbeat { self.copy_turns() } else { 1 };
        self.sent.outcomes = self.lane.send_in_turns(payloads, turns);
        stamp
    }

    /// To everybody, on the paths in turn; on all of them where there is one only, or this one does not take it.
    pub(super) fn send_on_one_path(&mut self, kind: Kind, body: &[u8]) {
        let path = (self.sent.event_number % PATHS as u64) as usize;
        if (0..PATHS).any(|path| self.lane.mode(path as u8) == PathMode::Down) {
            self.send_event(kind, None, body);
            return;
        }
        if self.is_fenced() {
            return;
        }
        self.sent.event_number += 1;
        let header = self.header(kind, path as u8, self.sent.event_number);
        match fide_wire::packet::encode(&mut self.sent.packets.0[path], &header, None, body, &self.start.keys) {
            Ok(len) => {
                let payloads = std::array::from_fn(|p| (p == path).then(|| &self.sent.packets.0[path][..len]));
                self.receiver.note_sent(false, self.sent.event_number);
                let outcomes = self.lane.send(payloads);
                if !outcomes[path].is_ok() {
                    self.send_event(kind, None, body);
                }
            }
            Err(e) => tracing::error!("{kind:?} not sent: {e}"),
        }
    }

    /// A copy to everybody on each path, all with this stamp.
    pub(super) fn send_copies(&mut self, sent_ns: u64, body: &[u8]) -> Departure {
        self.sent.event_number += 1;
        self.transmit_as(Kind::Copy, self.sent.event_number, |out, header, keys| {
            fide_wire::packet::encode(out, &Header { sent_ns, ..*header }, None, body, keys)
        });
        let outcomes = &self.sent.outcomes;
        if outcomes.iter().any(|outcome| outcome.copies == 0) {
            Departure::Void
        } else if outcomes.iter().all(SendOutcome::is_ok) {
            Departure::Whole
        } else {
            Departure::Partial
        }
    }

    pub(super) fn send_event(&mut self, kind: Kind, notice: Option<&Notice>, body: &[u8]) -> u64 {
        self.sent.event_number += 1;
        self.transmit(kind, self.sent.event_number, notice, body)
    }

    pub(super) fn send_notice(&mut self, kind: Kind, notice: &Notice) -> u64 {
        self.send_event(kind, Some(notice), &[])
    }

    /// Notices that came together, at most as many as one frame has room for. Returns the frame's stamp.
    pub(super) fn send_notices(&mut self, notices: &[Notice]) -> u64 {
        self.sent.event_number += 1;
        self.transmit_as(Kind::Notice, self.sent.event_number, |out, header, keys| {
            fide_wire::packet::encode_notices(out, header, notices, keys)
        })
    }

    pub(super) fn beat(&mut self, now: u64) {
        // Who leaves is silent, unless others rely on it not to be.
        if self.node.poll_heartbeat(now).is_none() || (self.stopping.is_some() && !self.promises()) {
            return;
        }
        if let Some(why) = self.fence_parts().and_then(|(driver, fence)| driver.check(fence, now)) {
            self.tell_fenced(why, now);
        }
        self.choose_way(now);
        self.send_heartbeat(now);
    }

    /// A heartbeat leaves, with what a process piggybacks, or what groups do: in turns, if both wait.
    pub(super) fn send_heartbeat(&mut self, now: u64) {
        let mut body = std::mem::take(&mut self.body);
        let before = self.sent.beaten_ns;
        body.clear();
        // What passes a closed gate carries nothing.
        let is_fenced = self.is_fenced();
        let rides = !is_fenced && !self.groups.is_empty() && (!self.rode || !self.watchlist.is_piggyback_waiting());
        if rides {
            self.take_rides(&mut body, now);
        }
        self.rode = !body.is_empty();
        let from = if self.rode || is_fenced { None } else { self.watchlist.take_piggyback(&mut body) };
        self.sent.number += 1;
        let sent_ns = self.transmit_heartbeat(&body);
        self.sent.beaten_ns = now_ns();
        self.fence_beat(now);
        if rides {
            self.rides_left(before);
        }
        if let Some(app) = from {
            // Who monitors it on this host hears the same.
            let record = Record {
                kind: RecordKind::Piggyback as u16,
                node: self.start.node,
                app,
                incarnation: self.start.incarnation,
                flags: Record::LOCAL,
                sent_ns,
                received_ns: sent_ns,
                number: self.sent.number,
                ..Record::default()
            };
            self.publish(self.start.node, app, &record, &body[fide_wire::packet::PIGGYBACK_HEAD..], false);
        }
        self.sent.heartbeats += 1;
        self.body = body;
    }
}
