//! What this host says of itself: incarnations, announcements, the contract that it offers, and others of its name.

use super::{ANNOUNCE_BURST, Core, HOUSEKEEPING_NS, Happened};
use crate::namesake::Namesakes;
use crate::shares::EventSource;
use fide_proto::node::directory::Facts;
use fide_wire::PATHS;
use fide_wire::frame::introduction::Introduction;
use fide_wire::frame::table::HOST_ROW;
use fide_wire::packet::{Kind, Packet};
use fide_wire::verdict::{Cause, Contract, Grade};
use std::num::NonZeroU64;

/// For so long after a frame with our MAC has come others are told of it.
const DIVERTED_NS: u64 = 3_000_000_000;

/// This host's own name and incarnation, as others are told of it.
pub(super) struct Own {
    /// When it announces itself, and how often it has since the last change.
    pub(super) announce_at: u64,
    announce_step: usize,
    /// Others of this name, and when one of them was answered.
    pub(super) namesakes: Namesakes,
    answered_name_ns: u64,
    /// When frames with our own MAC came last, by path, as was last seen.
    own_mac_ns: [u64; PATHS],
}

impl Own {
    pub(super) fn new(now: u64) -> Self {
        let namesakes = Namesakes::default();
        Self { announce_at: now, announce_step: 0, namesakes, answered_name_ns: 0, own_mac_ns: [0; PATHS] }
    }
}

impl Core {
    /// An announcement of our own name. If it answers what we asked, somebody else has sent it.
    pub(super) fn own_name(&mut self, packet: &Packet<'_>, now: u64) {
        if packet.header.kind != Kind::Introduction {
            return;
        }
        let Some(said) = Introduction::read(packet.body) else { return };
        if *said.host.name != *self.start.name {
            return;
        }
        let number = |number: Option<NonZeroU64>| number.map(NonZeroU64::get);
        if self.own.namesakes.announced(number(said.challenge), number(said.response)) {
            self.complained.clash_count += 1;
            // In one and the same incarnation others could not tell us apart.
            if packet.header.incarnation == self.start.incarnation {
                tracing::warn!("another agent has this name and this incarnation: starting a new one");
                self.start_over(self.start.incarnation.saturating_add((now % 61) as u32), now);
            }
        }
        if self.own.namesakes.owes_answer() && now >= self.own.answered_name_ns.saturating_add(HOUSEKEEPING_NS) {
            self.own.answered_name_ns = now;
            self.own.announce_at = self.own.announce_at.min(now);
        }
    }

    /// Others gave this agent up (wrongly, as it still runs): it comes back as somebody new, so that nobody mistakes one life for another.
    pub(super) fn start_over(&mut self, after: u32, now: u64) {
        if !self.begin_incarnation(after, now) {
            return;
        }
        let name = self.start.name.clone();
        self.tell(
            Cause::Returned,
            Grade::Certain,
            &name,
            self.start.incarnation,
            None,
            2,
            false,
            None,
            None,
            EventSource::OWN,
            now,
        );
    }

    /// Begins the incarnation behind this one and `after`; `false` if there is none: that is told.
    pub(super) fn begin_incarnation(&mut self, after: u32, now: u64) -> bool {
        let Some(next) = crate::state::next_incarnation(self.start.incarnation.max(after)) else {
            self.complained.used_up_count += 1;
            let count = self.complained.used_up_count;
            if self.complained.used_up.due(count, now) {
                let name = &self.start.name;
                let text = format!(
                    "others know incarnation {after} of {name}, behind which there is none (was its clock far ahead once?), and refuse what this one \
                     says: fide forget {name} on each of them takes it back"
                );
                tracing::error!("{text}");
                self.tell_local(EventSource::OWN, 0, text);
            }
            return false;
        };
        self.start.incarnation = next;
        self.groups.begin_incarnation(now, self.start.incarnation);
        self.receiver.set_incarnation(self.start.incarnation);
        let version = self.receiver.next_notice().into();
        self.node.begin_incarnation(self.start.incarnation, version, now);
        self.keep_row(HOST_ROW);
        self.say(Happened::Incarnation(self.start.incarnation));
        self.announce_soon(now);
        true
    }

    pub(super) fn announce_soon(&mut self, now: u64) {
        self.own.announce_step = 0;
        self.own.announce_at = now;
    }

    pub(super) fn announce(&mut self, now: u64) {
        self.own.announce_step += 1;
        let step = self.own.announce_step;
        self.own.announce_at = match ANNOUNCE_BURST.get(step) {
            Some(after) => now + (after - ANNOUNCE_BURST[step - 1]),
            None => now + HOUSEKEEPING_NS,
        };
        let (challenge, response) = self.own.namesakes.announce();
        let number = |number: Option<u64>| number.and_then(NonZeroU64::new);
        let (challenge, response, diverted) = (number(challenge), number(response), self.diverted_paths(now));
        self.node.set_facts(Facts { contract: self.own_contract(), challenge, response, diverted });
        self.node.announce();
    }

    /// The contract this agent offers: its period, what fits, and the worst it has seen of its own paths.
    #[must_use]
    pub fn own_contract(&self) -> Contract {
        self.node.offered_contract(self.start.period_ns, self.lane.piggyback_max() as u32)
    }

    /// Frames with our own MAC came in: others are told, and what is answered to us may go astray.
    pub(super) fn note_own_mac(&mut self, now: u64) {
        let mut news = false;
        for path in 0..PATHS {
            let last_ns = self.receiver.own_mac_ns(path);
            if last_ns > std::mem::replace(&mut self.own.own_mac_ns[path], last_ns) {
                news |= self.node.detector_mut().diverted(self.start.node, path, now);
            }
        }
        if news {
            self.announce_soon(now);
        }
    }

    /// The paths on which our MAC was heard a moment ago.
    fn diverted_paths(&self, now: u64) -> [bool; PATHS] {
        self.own.own_mac_ns.map(|last_ns| last_ns != 0 && now.saturating_sub(last_ns) < DIVERTED_NS)
    }
}
