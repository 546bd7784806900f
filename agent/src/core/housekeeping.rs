//! Once a second: reports, calibration, and what an operator should hear of.

use super::{Core, HOUSEKEEPING_NS};
use crate::shares::EventSource;
use fide_wire::PATHS;
use fide_wire::verdict::{Cause, Grade};

impl Core {
    /// Interests in processes that are gone, and those of hosts that are gone.
    fn forget_monitors(&mut self) {
        let listening = |node: u32| self.slot(node).and_then(|s| self.peers[s].as_ref()).is_some_and(|p| !p.condemned && !p.left);
        let keep = |(from, app): &(u32, u32)| self.watchlist.get(*app).is_some_and(|w| w.ended.is_none()) && listening(*from);
        let gone: Vec<_> = self.monitored_by.keys().filter(|k| !keep(k)).copied().collect();
        for key in gone {
            self.monitored_by.remove(&key);
        }
    }

    pub(super) fn housekeeping(&mut self, now: u64) {
        self.housekeeping_at = now + HOUSEKEEPING_NS;
        self.calibrate(now);
        self.node.report(now);
        self.try_some(now);
        self.ask_sizes(now);
        self.look_at_half_sent(now);
        self.look_at_losses();
        self.groups.handle_second(now, |node| self.losses.is_calm(node));
        self.put_agent(now);
        self.complain(now);
        self.complain_of_fence(now);
        self.recover_stranded(now);
        self.receiver.check_pidfds();
        self.subscribers.tell_losses(self.receiver.mechanism());
        self.let_unclaimed_go(now);
        self.owed.rates.retain(|_, rate| !rate.is_idle(now));
        self.forget_monitors();
        self.forget_renamed();
        // Word of interfaces comes from the control thread: to look at them takes longer the more this host has.
        for path in 0..PATHS {
            self.look_at_carrier(path, now);
        }
    }

    /// What the counters say that an operator should hear: at once, and as long as it goes on again every ten minutes.
    fn complain(&mut self, now: u64) {
        let refused = self.receiver.refused();
        use fide_wire::packet::Refusal;
        // What was dropped here could have been heartbeats: evidence for verdicts on silence.
        self.node.detector_mut().receive_drops(refused[Refusal::RingFull as usize]);
        // Now and then, so that what was lost long ago is no veto later.
        self.note_drops(now);
        const FOREIGN: [Refusal; 4] = [Refusal::Cluster, Refusal::Key, Refusal::Mac, Refusal::Version];
        let foreign: u64 = FOREIGN.iter().map(|r| refused[*r as usize]).sum();
        // Our own name comes back when the network loops or somebody sends recordings; or another agent has it, and then it answers.
        if let Ok(random) = fide_lane::random() {
            // Numbers that every reader of JSON reads exactly.
            self.own.namesakes.look(refused[Refusal::Own as usize], random >> 11);
        }
        self.tell_unwanted(now);
        self.note_own_mac(now);
        let clashes = self.complained.clash_count;
        let due = [self.complained.clashes.due(clashes, now), self.complained.foreign.due(foreign, now)];
        let (name, incarnation) = (self.start.name.clone(), self.start.incarnation);
        if due[0] {
            self.tell(Cause::NameClash, Grade::Certain, &name, incarnation, None, 0, false, None, None, EventSource::OWN, now);
        }
        if due[1] {
            let text = self.foreign_text();
            self.tell_text(Cause::ForeignTraffic, Grade::Certain, (&name, incarnation), 0, text, EventSource::OWN, now);
        }
    }
}
