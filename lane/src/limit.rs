//! The sender's own rate limit. Pure.
//!
//! The bound on jitter that others rely on holds only while nobody sends more than was agreed: at most σ bytes once per π
//! (X-Lane §2.1, §3: "rate limiting at the endhosts"). What exceeds it is refused here, before it can delay anything.
//!
//! Besides heartbeats a lane sends notices, confirmations, reports and announcements, few and small; they have a
//! budget of their own, so that neither class can starve the other. Within a period it holds `extra` packets; the
//! unused part is not saved up.

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The periodic message, at most one per period.
    Heartbeat,
    /// All else.
    Other,
}

/// Why something may not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Larger than σ.
    #[error("{size} bytes exceed the contract's {limit}")]
    Size {
        /// Bytes asked for.
        size: usize,
        /// σ.
        limit: usize,
    },
    /// More often than agreed.
    #[error("more often than the contract allows; again in {wait_ns} ns")]
    Rate {
        /// How long to wait.
        wait_ns: u64,
    },
}

/// At most one heartbeat and `extra` other packets per period, each of at most σ bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limiter {
    period_ns: u64,
    size_max: usize,
    extra: u32,
    /// When the last heartbeat's slot was.
    heartbeat_ns: Option<u64>,
    /// Start of the running period of other packets, and how many of them it has seen.
    window_ns: u64,
    used: u32,
    refused: u64,
}

impl Limiter {
    /// A limiter for the contract (π, σ).
    #[must_use]
    pub const fn new(period_ns: u64, size_max: usize, extra: u32) -> Self {
        Self { period_ns, size_max, extra, heartbeat_ns: None, window_ns: 0, used: 0, refused: 0 }
    }

    /// Another contract from now on.
    pub const fn set(&mut self, period_ns: u64, size_max: usize) {
        self.period_ns = period_ns;
        self.size_max = size_max;
    }

    /// Whether `size` bytes may be sent now; if so they count.
    ///
    /// For a heartbeat, `now_ns` is its *slot* ([`crate::pace::Tick::slot_ns`]): two slots are a period apart even when a late
    /// one and a punctual one leave closer to each other.
    ///
    /// # Errors
    /// What it exceeds.
    pub fn admit(&mut self, class: Class, size: usize, now_ns: u64) -> Result<(), Excess> {
        let verdict = self.judge(class, size, now_ns);
        if verdict.is_err() {
            self.refused = self.refused.saturating_add(1);
        }
        verdict
    }

    fn judge(&mut self, class: Class, size: usize, now_ns: u64) -> Result<(), Excess> {
        if size > self.size_max {
            return Err(Excess::Size { size, limit: self.size_max });
        }
        match class {
            Class::Heartbeat => {
                let due_ns = self.heartbeat_ns.map_or(0, |last| last.saturating_add(self.period_ns));
                if now_ns < due_ns {
                    return Err(Excess::Rate { wait_ns: due_ns - now_ns });
                }
                self.heartbeat_ns = Some(now_ns);
            }
            Class::Other => {
                let end_ns = self.window_ns.saturating_add(self.period_ns);
                if now_ns >= end_ns || self.used == 0 {
                    (self.window_ns, self.used) = (now_ns, 0);
                } else if self.used >= self.extra {
                    return Err(Excess::Rate { wait_ns: end_ns - now_ns });
                }
                if self.extra == 0 {
                    return Err(Excess::Rate { wait_ns: u64::MAX });
                }
                self.used += 1;
            }
        }
        Ok(())
    }

    /// How many packets were refused so far.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn x_lane_2_1_one_message_of_sigma_bytes_per_period() {
        let mut l = Limiter::new(1_000, 100, 2);
        assert_eq!(l.admit(Class::Heartbeat, 101, 0), Err(Excess::Size { size: 101, limit: 100 }));
        assert_eq!(l.admit(Class::Heartbeat, 100, 0), Ok(()));
        assert_eq!(l.admit(Class::Heartbeat, 100, 999), Err(Excess::Rate { wait_ns: 1 }));
        assert_eq!(l.admit(Class::Heartbeat, 100, 1_000), Ok(()));
        assert_eq!(l.refused(), 2);
    }

    #[test]
    fn classes_do_not_starve_each_other() {
        let mut l = Limiter::new(1_000, 100, 2);
        assert!(l.admit(Class::Other, 1, 500).is_ok());
        assert!(l.admit(Class::Other, 1, 600).is_ok());
        assert_eq!(l.admit(Class::Other, 1, 700), Err(Excess::Rate { wait_ns: 800 }));
        assert!(l.admit(Class::Heartbeat, 1, 700).is_ok());
        assert!(l.admit(Class::Other, 1, 1_500).is_ok());
        assert!(Limiter::new(1_000, 100, 0).admit(Class::Other, 1, 5).is_err());
    }

    proptest! {
        /// Over any run, whatever is asked for: no more heartbeats than periods, no more others than twice their budget in
        /// any period's length (the end of one window and the start of the next).
        #[test]
        fn never_more_than_agreed(period in 1u64..10_000, extra in 0u32..5, steps in proptest::collection::vec((0u64..5_000, any::<bool>()), 1..300)) {
            let mut l = Limiter::new(period, 100, extra);
            let (mut now, mut beats, mut others) = (0u64, vec![], vec![]);
            for (step, beat) in steps {
                now += step;
                let class = if beat { Class::Heartbeat } else { Class::Other };
                if l.admit(class, 10, now).is_ok() {
                    if beat { beats.push(now) } else { others.push(now) }
                }
            }
            prop_assert!(beats.windows(2).all(|w| w[1] - w[0] >= period));
            let reach = 2 * extra as usize;
            prop_assert!(others.windows(reach + 1).all(|w| w[reach] - w[0] >= period));
            prop_assert!(extra > 0 || others.is_empty());
        }
    }
}
