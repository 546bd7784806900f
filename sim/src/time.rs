//! The times of a simulated world, and clocks that drift.

use fide_wire::verdict::Contract;

/// A microsecond.
pub const US: u64 = 1_000;

/// HB: one heartbeat on each path in each of these.
pub const PERIOD_NS: u64 = 100 * US;
/// λmin.
pub const LAMBDA_MIN_NS: u64 = 20 * US;
/// δmax, of which a late sender takes [`SENDER_LATE_NS`] at most and the network [`JITTER_NS`].
pub const DELTA_MAX_NS: u64 = 30 * US;
/// How late a heartbeat leaves within the contract.
pub const SENDER_LATE_NS: u64 = 10 * US;
/// How much slower than λmin a copy is within the contract.
pub const JITTER_NS: u64 = 18 * US;

const _: () = assert!(SENDER_LATE_NS + JITTER_NS < DELTA_MAX_NS);

/// What every path promises.
pub const CONTRACT: Contract =
    Contract { period_ns: PERIOD_NS, size_max: 1418, lambda_min_ns: LAMBDA_MIN_NS, delta_max_ns: DELTA_MAX_NS };

/// The clock of a host: it was set at some time and runs a little too fast or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// What it showed when the world began.
    pub offset_ns: u64,
    /// How much it gains in a million.
    pub ppm: i64,
}

impl Clock {
    /// What it shows.
    #[must_use]
    pub fn local(&self, now_ns: u64) -> u64 {
        self.offset_ns + now_ns.wrapping_add_signed(now_ns as i64 * self.ppm / 1_000_000)
    }

    /// When it shows that, or has shown it for the first moment.
    #[must_use]
    pub fn global(&self, local_ns: u64) -> u64 {
        let shown = local_ns.saturating_sub(self.offset_ns);
        let mut at = (u128::from(shown) * 1_000_000 / (1_000_000 + self.ppm) as u128) as u64;
        while self.local(at) < local_ns {
            at += 1;
        }
        at
    }
}

/// `12.3 µs`, exactly.
#[must_use]
pub fn micros(ns: u64) -> String {
    if ns.is_multiple_of(US) {
        return format!("{} µs", ns / US);
    }
    let text = format!("{}.{:03}", ns / US, ns % US);
    format!("{} µs", text.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_reads_back() {
        for ppm in [-200, -1, 0, 1, 37, 200] {
            let clock = Clock { offset_ns: 1_000_003, ppm };
            for at in [0, 1, 99_999, 100_000, 123_456_789] {
                let shown = clock.local(at);
                let back = clock.global(shown);
                assert!(clock.local(back) >= shown && back <= at + 1, "{ppm} {at} {back}");
            }
        }
    }
}
