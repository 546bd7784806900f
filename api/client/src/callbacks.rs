//! Events as calls, for those who prefer upcalls in the form of Listing 1.

use crate::event::{Event, Piggyback, Subject, Verdict};

/// What an application wants to be told; everything it leaves out is ignored. Called by [`crate::Client::dispatch`] on the
/// thread that called it, without any lock held.
pub trait Callbacks {
    /// A monitored process is ending or gone; once for each of its instances. See [`Event::Failure`].
    fn on_failure(&mut self, failure: &Verdict) {
        let _ = failure;
    }
    /// The end of a process that was reported as *doomed* was seen.
    fn on_confirmed(&mut self, confirmed: &Verdict) {
        let _ = confirmed;
    }
    /// A monitored process makes no progress. See [`Event::Hung`].
    fn on_hung(&mut self, hung: &Verdict) {
        let _ = hung;
    }
    /// A process that was hung moves again.
    fn on_progressing(&mut self, progressing: &Verdict) {
        let _ = progressing;
    }
    /// A monitored process sent a message.
    fn on_piggyback_rcv(&mut self, piggyback: &Piggyback) {
        let _ = piggyback;
    }
    /// The timeout towards a monitored process changed.
    fn on_timeout_changed(&mut self, subject: &Subject, timeout_ns: u64) {
        let _ = (subject, timeout_ns);
    }
    /// Somebody began to monitor this process, and would like `pbsize` bytes of piggyback.
    fn on_monitor_req(&mut self, by: &Subject, pbsize: u32) {
        let _ = (by, pbsize);
    }
    /// What this process may piggyback changed, bytes.
    fn on_pbsize_changed(&mut self, pbsize: u32) {
        let _ = pbsize;
    }
    /// This host is fenced: what this process sends is not heard any more, see [`Event::Fenced`].
    fn on_fenced(&mut self, fenced: &Verdict) {
        let _ = fenced;
    }
    /// The fence was opened again, see [`Event::Recovered`].
    fn on_recovered(&mut self, recovered: &Verdict) {
        let _ = recovered;
    }
    /// Everything else: hosts, paths, lost events, the agent's own end.
    fn on_other(&mut self, event: &Event) {
        let _ = event;
    }
    /// Chooses among the above; to be overridden by those who want to see every event in one place.
    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Failure(v) => self.on_failure(v),
            Event::Fenced(v) => self.on_fenced(v),
            Event::Recovered(v) => self.on_recovered(v),
            Event::Confirmed(v) => self.on_confirmed(v),
            Event::Hung(v) => self.on_hung(v),
            Event::Progressing(v) => self.on_progressing(v),
            Event::Piggyback(p) => self.on_piggyback_rcv(p),
            Event::TimeoutChanged { subject, timeout_ns } => self.on_timeout_changed(subject, *timeout_ns),
            Event::MonitorRequest { by, pbsize } => self.on_monitor_req(by, *pbsize),
            Event::PiggybackSizeChanged { pbsize } => self.on_pbsize_changed(*pbsize),
            Event::Monitored(_) | Event::Host(_) | Event::Lost { .. } | Event::AgentGone | Event::Other { .. } => {
                self.on_other(event);
            }
        }
    }
}
