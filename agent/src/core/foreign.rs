//! Packets that nobody wanted, and those of other clusters and keys: told once, and listed in the status.

use super::Core;
use crate::receive::Came;
use crate::shares::EventSource;
use crate::unwanted::{FOREIGN, What, foreign, mac_text, words};
use fide_wire::control::UnwantedStatus;
use fide_wire::packet::Refusal;
use fide_wire::verdict::{Cause, Grade};
use fide_xdp::layout::Unwanted;

impl Core {
    fn came(&self, what: What) -> Came {
        match what {
            What::Unwanted(kind) => self.receiver.unwanted(kind),
            What::Refused(reason) => self.receiver.refused_from(reason),
        }
    }

    /// Once a second: tells what came and was not wanted, if it is time.
    pub(super) fn tell_unwanted(&mut self, now: u64) {
        let mut watch = std::mem::take(&mut self.unwanted);
        let due = watch.look(|what| self.came(what).0, now);
        self.unwanted = watch;
        for (what, grew) in due {
            let (code, text) = words(what, grew, &self.came(what));
            let (name, incarnation) = (self.start.name.clone(), self.start.incarnation);
            self.tell_text(Cause::ForeignTraffic, Grade::Certain, (&name, incarnation), code, text, EventSource::OWN, now);
        }
    }

    /// That packets of another cluster or key come, how many of each, and where the last ones came from.
    pub(super) fn foreign_text(&self) -> String {
        let of = |(reason, what)| foreign(&self.receiver.refused_from(reason), what);
        let parts: Vec<String> = FOREIGN.into_iter().filter_map(of).collect();
        format!("{} refused {}; fide doctor says what to do", self.start.name, parts.join(", "))
    }

    /// For the status: everything of which there was any, and of what a healthy cluster sends everything of which there were many.
    /// `fide_packets_unwanted_total` counts all.
    #[must_use]
    pub(crate) fn unwanted_status(&self, now: u64) -> Vec<UnwantedStatus> {
        let kinds = Unwanted::ALL.into_iter().map(|kind| (kind.name(), What::Unwanted(kind)));
        let all = kinds.chain(Refusal::ALL.into_iter().map(|reason| (reason.name(), What::Refused(reason))));
        let status = |(kind, what): (&str, What)| {
            let (count, last, path) = self.came(what);
            let mac = if last.mac == [0; 6] { String::new() } else { mac_text(last.mac) };
            let from = last.address().map_or_else(String::new, |a| a.to_string());
            let age_ns = now.saturating_sub(last.last_ns);
            (count > 0 && self.unwanted.is_told(what)).then(|| UnwantedStatus {
                kind: kind.into(),
                count,
                from,
                mac,
                path,
                age_ns,
            })
        };
        all.filter_map(status).collect()
    }
}
