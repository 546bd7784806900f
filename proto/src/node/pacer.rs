//! When the next heartbeat is due. Pure: time comes in as an argument.
//!
//! The schedule is absolute — slot after slot, one period apart from the first — so that lateness never adds up and receivers
//! may measure jitter against it. A sender that was away does not make up for what it missed: a burst would break
//! the contract (at most one message per π, X-Lane §2.1) to deliver old news. It sends once, says how many slots it skipped,
//! and is back on schedule.

/// A slot that came due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// When it should have been sent: the latest slot that is over.
    pub slot_ns: u64,
    /// How much later than that it is now; always less than a period.
    pub late_ns: u64,
    /// Slots before it that are lost for good.
    pub skipped: u64,
}

/// The schedule of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    period_ns: u64,
    next_ns: u64,
}

impl Pacer {
    /// A schedule whose first slot is now. A period of 0 counts as 1 ns.
    #[must_use]
    pub const fn new(period_ns: u64, now_ns: u64) -> Self {
        Self { period_ns: if period_ns == 0 { 1 } else { period_ns }, next_ns: now_ns }
    }

    /// The period.
    #[must_use]
    pub const fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// When the next slot is due.
    #[must_use]
    pub const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The slot that is due now, if any; the schedule moves past it.
    pub const fn tick(&mut self, now_ns: u64) -> Option<Tick> {
        let Some(behind) = now_ns.checked_sub(self.next_ns) else { return None };
        let skipped = behind / self.period_ns;
        let late_ns = behind % self.period_ns;
        self.next_ns = (now_ns - late_ns).saturating_add(self.period_ns);
        Some(Tick { slot_ns: now_ns - late_ns, late_ns, skipped })
    }

    /// Another period from the last slot on: the next one is a new period after the one that was sent last, though never
    /// before now.
    pub const fn set_period(&mut self, period_ns: u64, now_ns: u64) {
        let last_ns = self.next_ns.saturating_sub(self.period_ns);
        self.period_ns = if period_ns == 0 { 1 } else { period_ns };
        let next_ns = last_ns.saturating_add(self.period_ns);
        self.next_ns = if next_ns < now_ns { now_ns } else { next_ns };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pause_is_skipped_and_counted_not_made_up_for() {
        let mut p = Pacer::new(100, 1_000);
        assert_eq!(p.tick(999), None);
        assert_eq!(p.tick(1_000), Some(Tick { slot_ns: 1_000, late_ns: 0, skipped: 0 }));
        assert_eq!(p.tick(1_099), None);
        assert_eq!(p.tick(1_457), Some(Tick { slot_ns: 1_400, late_ns: 57, skipped: 3 }));
        assert_eq!(p.tick(1_457), None);
        assert_eq!(p.next_ns(), 1_500);
    }

    #[test]
    fn a_shorter_period_counts_from_the_last_slot_and_never_from_the_past() {
        let mut p = Pacer::new(1_000, 0);
        p.tick(0);
        p.set_period(100, 50);
        assert_eq!(p.next_ns(), 100);
        p.set_period(1_000, 50);
        assert_eq!(p.next_ns(), 1_000);
        p.set_period(10, 900);
        assert_eq!(p.next_ns(), 900);
        p.set_period(0, 900);
        assert!(p.tick(901).is_some());
    }

    #[test]
    fn the_end_of_time_does_not_wrap() {
        let mut p = Pacer::new(u64::MAX, u64::MAX - 1);
        assert!(p.tick(u64::MAX).is_some());
        assert_eq!(p.next_ns(), u64::MAX);
    }

    proptest! {
        /// Slots stay on the grid for ever, and ticks plus skips are all of them: no drift, no burst.
        #[test]
        fn no_drift_no_burst(period in 1u64..10_000_000, start in 0u64..1 << 60, steps in proptest::collection::vec(0u64..50_000_000, 1..200)) {
            let mut p = Pacer::new(period, start);
            let (mut now, mut slots) = (start, 0);
            for step in steps {
                now += step;
                let before = p.next_ns();
                if let Some(t) = p.tick(now) {
                    slots += t.skipped + 1;
                    prop_assert!(t.late_ns < period);
                    prop_assert_eq!(t.slot_ns + t.late_ns, now);
                    prop_assert_eq!(p.tick(now), None, "one tick for one moment");
                } else {
                    prop_assert!(now < before);
                }
                prop_assert_eq!(p.next_ns(), start + slots * period);
                prop_assert!(p.next_ns() > now);
            }
        }

        #[test]
        fn any_change_of_period_keeps_going_forward(changes in proptest::collection::vec((0u64..1_000_000, 0u64..1_000_000), 1..100)) {
            let mut p = Pacer::new(1_000, 0);
            let mut now = 0;
            for (period, step) in changes {
                now += step;
                p.set_period(period, now);
                prop_assert!(p.next_ns() >= now);
                prop_assert!(p.next_ns() <= now + p.period_ns());
                p.tick(now);
                prop_assert!(p.next_ns() > now);
            }
        }
    }
}
