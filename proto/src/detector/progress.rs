//! Liveness gated by progress (B10): who is there and does not move is *hung*, which is neither dead nor unreachable.
//!
//! Think of a night porter who walks past the doors of those who asked for it. At each door hangs a counter that its owner turns while
//! working. The porter passes eight times within the time that the owner named, looks, and notes how many times in a row nothing had moved. Eight
//! times: he rings. Was he himself late, then what he sees says nothing about the owner in the meantime, and that visit does not count;
//! was he gone for the whole of the owner's time, he starts counting anew. A door with the sign "idle" is passed by.
//!
//! The alternative, a stamp with each movement, needs no such walks, but costs a clock reading per movement, on the application's side, and
//! believes its clock. A counter is one addition.
//!
//! **When is it told?** Not before the limit: nothing is counted before a look that found the counter where it was. And at most
//! limit + limit/8 after the last movement, plus what the looks were late ([`Progress::poll_timeout`] says when the next is due).
//!
//! A process may have several sources (counters of its threads, a probe). It is hung while at least one of them stands still, and is told so when
//! the first begins and when the last one ends. The shell reads sources when [`Progress::poll_look`] says so, and feeds
//! [`Progress::looked`]; there is no clock in here.

use fide_wire::verdict::{Cause, ProgressSource};
use std::collections::{BTreeMap, BTreeSet};

/// Looks within a limit.
pub const LOOKS: u64 = 8;

/// What a look saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The counter. Any change is movement, also backwards: its owner is not trusted to count.
    pub count: u64,
    /// Whether movement is expected now.
    pub busy: bool,
}

/// A change that everybody should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The process.
    pub app: u32,
    /// [`Cause::Hung`] or [`Cause::Progressing`].
    pub cause: Cause,
    /// What stands still, or moved at last.
    pub source: ProgressSource,
    /// How long nothing moved, as far as was looked; 0 where that is not the reason.
    pub stood_ns: u64,
    /// The limit that was exceeded; 0 for a report.
    pub limit_ns: u64,
}

#[derive(Clone, Debug)]
struct Source {
    limit_ns: u64,
    /// The last look; `None` before the first.
    seen: Option<Look>,
    /// Time over which looks that were not late saw no movement.
    stood_ns: u64,
    /// Since the last look.
    looked_ns: u64,
    due_ns: u64,
    hung: bool,
}

impl Source {
    /// Rounded up, so that eight of them are not less than the limit.
    const fn interval_ns(&self) -> u64 {
        let interval = self.limit_ns.div_ceil(LOOKS);
        if interval == 0 { 1 } else { interval }
    }
}

/// The machine: all sources of all processes of this host.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    sources: BTreeMap<(u32, ProgressSource), Source>,
    /// (due, whose) of each source that is looked at.
    schedule: BTreeSet<(u64, u32, ProgressSource)>,
    pauses: u64,
}

impl Progress {
    /// Nothing to look at.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at this source from now on, or by another limit. What is counted begins anew; a process that is hung by it stays so until it
    /// moves.
    pub fn watch(&mut self, app: u32, source: ProgressSource, limit_ns: u64, now_ns: u64) {
        let known = self.sources.get(&(app, source));
        let hung = known.is_some_and(|s| s.hung);
        if let Some(s) = known {
            self.schedule.remove(&(s.due_ns, app, source));
        }
        let fresh = Source { limit_ns: limit_ns.max(1), seen: None, stood_ns: 0, looked_ns: now_ns, due_ns: now_ns, hung };
        self.schedule.insert((fresh.due_ns, app, source));
        self.sources.insert((app, source), fresh);
        self.invariants();
    }

    /// No longer looks at this source. If it was all that the process was hung by, nothing says so any more.
    pub fn unwatch(&mut self, app: u32, source: ProgressSource) -> Option<Finding> {
        let gone = self.sources.remove(&(app, source))?;
        self.schedule.remove(&(gone.due_ns, app, source));
        self.invariants();
        (gone.hung && self.hung_by(app).is_none()).then_some(Finding {
            app,
            cause: Cause::Progressing,
            source,
            stood_ns: 0,
            limit_ns: gone.limit_ns,
        })
    }

    /// The process ended: nothing more is to be said of its progress.
    pub fn forget(&mut self, app: u32) {
        let all: Vec<_> =
            self.sources.range((app, ProgressSource::Counter(0))..=(app, ProgressSource::Report)).map(|(k, _)| *k).collect();
        for key in all {
            if let Some(gone) = self.sources.remove(&key) {
                self.schedule.remove(&(gone.due_ns, key.0, key.1));
            }
        }
        self.invariants();
    }

    /// An application says of a process what its own detector found (FiDe §6.6). It holds until it is withdrawn, or the process ends.
    pub fn reported(&mut self, app: u32, hung: bool, now_ns: u64) -> Option<Finding> {
        let source = ProgressSource::Report;
        if !hung {
            return self.unwatch(app, source);
        }
        let first = self.hung_by(app).is_none();
        let report = Source { limit_ns: 0, seen: None, stood_ns: 0, looked_ns: now_ns, due_ns: u64::MAX, hung: true };
        self.sources.insert((app, source), report);
        self.invariants();
        first.then_some(Finding { app, cause: Cause::Hung, source, stood_ns: 0, limit_ns: 0 })
    }

    /// The next source to be read now. Call [`Progress::looked`] with what it shows before asking again.
    #[must_use]
    pub fn poll_look(&self, now_ns: u64) -> Option<(u32, ProgressSource)> {
        self.schedule.first().filter(|(due, _, _)| *due <= now_ns).map(|(_, app, source)| (*app, *source))
    }

    /// When [`Progress::poll_look`] has something next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.schedule.first().map(|(due, _, _)| *due)
    }

    /// What a source shows. `now_ns` is to be read before the source.
    pub fn looked(&mut self, app: u32, source: ProgressSource, look: Look, now_ns: u64) -> Option<Finding> {
        let s = self.sources.get_mut(&(app, source))?;
        self.schedule.remove(&(s.due_ns, app, source));
        let interval = s.interval_ns();
        let late_ns = now_ns.saturating_sub(s.due_ns);
        let before = s.seen.replace(look);
        let stands = look.busy && before.is_some_and(|b| b.busy && b.count == look.count);
        if !stands {
            s.stood_ns = 0;
        } else if late_ns >= s.limit_ns {
            // We were not running (stopped, or the whole machine was): whether it could run meanwhile is not known.
            s.stood_ns = 0;
            self.pauses += 1;
        } else if late_ns <= interval {
            s.stood_ns = s.stood_ns.saturating_add(now_ns.saturating_sub(s.looked_ns).min(interval));
        } else {
            self.pauses += 1;
        }
        s.looked_ns = now_ns;
        s.due_ns = now_ns.saturating_add(interval);
        let (stood_ns, limit_ns, was) = (s.stood_ns, s.limit_ns, s.hung);
        // Idle is not hung, and the first look after a change of the limit says nothing yet.
        let moves = !look.busy || before.is_some_and(|b| b.count != look.count);
        s.hung = if was { !moves } else { stood_ns >= limit_ns };
        let is = s.hung;
        self.schedule.insert((s.due_ns, app, source));
        self.invariants();
        if was == is {
            return None;
        }
        let cause = if is { Cause::Hung } else { Cause::Progressing };
        let others = self.of(app).any(|(other, s)| other != source && s.hung);
        (!others).then_some(Finding { app, cause, source, stood_ns, limit_ns })
    }

    /// By what a process is hung, if it is.
    #[must_use]
    pub fn hung_by(&self, app: u32) -> Option<ProgressSource> {
        self.of(app).find(|(_, s)| s.hung).map(|(source, _)| source)
    }

    /// The limit of a source that is looked at.
    #[must_use]
    pub fn limit_ns(&self, app: u32, source: ProgressSource) -> Option<u64> {
        self.sources.get(&(app, source)).map(|s| s.limit_ns)
    }

    /// Whether anything of this process is looked at.
    #[must_use]
    pub fn is_watched(&self, app: u32) -> bool {
        self.of(app).next().is_some()
    }

    /// Looks that were so late that they said nothing.
    #[must_use]
    pub const fn pauses(&self) -> u64 {
        self.pauses
    }

    fn of(&self, app: u32) -> impl Iterator<Item = (ProgressSource, &Source)> {
        self.sources.range((app, ProgressSource::Counter(0))..=(app, ProgressSource::Report)).map(|((_, source), s)| (*source, s))
    }

    fn invariants(&self) {
        // Each look would look at all: of thousands that takes longer than there is time between two looks.
        if !cfg!(debug_assertions) || self.sources.len() > 256 {
            return;
        }
        let looked_at = |source: &ProgressSource| *source != ProgressSource::Report;
        debug_assert_eq!(self.schedule.len(), self.sources.keys().filter(|(_, s)| looked_at(s)).count(), "each is due once");
        debug_assert!(self.schedule.iter().all(|(due, app, s)| self.sources.get(&(*app, *s)).is_some_and(|x| x.due_ns == *due)));
        debug_assert!(self.sources.iter().all(|((_, source), s)| s.stood_ns < s.limit_ns || s.hung || !looked_at(source)));
    }
}
