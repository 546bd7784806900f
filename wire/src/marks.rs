//! What the receive program notes of a host's heartbeats now and then, so that an agent which slept can tell what the last of them were like.
//!
//! A row of the receive table says when the last heartbeat came and how many ever did. After a pause of many seconds that says nothing of the last hundred
//! milliseconds, and these decide whether another host's silence is its own ([`Recent`]). So the program marks every [`EVERY`]th heartbeat, and
//! keeps the last two marks: what came since the older one is between one and two times as many.

/// Heartbeats from one mark to the next.
pub const EVERY: u64 = 64;
/// log2 of the unit of the moments in them, in nanoseconds (1.05 ms).
pub const SHIFT: u32 = 20;

/// The last two marks of one path, the older first: the moment in the upper half, below it how many heartbeats had come and how many were missing, 16 bits each. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub [u64; 2]);

/// What came since the older mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// When that was, at the latest one unit before (this host's CLOCK_MONOTONIC); 0 when there is no such mark.
    pub from_ns: u64,
    /// Heartbeats that came since.
    pub came: u64,
    /// Numbers that were found missing since.
    pub lost: u64,
}

impl Marks {
    /// What the receive program does when the `arrived`th heartbeat has come at `now_ns` and `lost` are missing.
    pub fn count(&mut self, arrived: u64, lost: u64, now_ns: u64) {
        if arrived.is_multiple_of(EVERY) {
            self.0 = [self.0[1], now_ns >> SHIFT << 32 | (arrived & 0xffff) << 16 | (lost & 0xffff)];
        }
    }

    /// What came since the older mark, when `arrived` have come, the last at `last_ns`, and `lost` are missing.
    #[must_use]
    pub fn recent(&self, arrived: u64, lost: u64, last_ns: u64) -> Recent {
        let older = self.0[0];
        if older == 0 {
            return Recent::default();
        }
        // The upper half wraps after 52 days: it is the latest such moment that is not after the last heartbeat.
        let ago = u64::from(((last_ns >> SHIFT) as u32).wrapping_sub((older >> 32) as u32));
        Recent {
            from_ns: ((last_ns >> SHIFT).saturating_sub(ago)) << SHIFT,
            came: arrived.wrapping_sub(older >> 16) & 0xffff,
            lost: lost.wrapping_sub(older) & 0xffff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_64_to_128_are_told_over_every_wrap() {
        const MS: u64 = 1_000_000;
        for begin in [0, 51 * 86_400_000 * MS, (1 << 52) - 3 * MS, u64::from(u32::MAX) << SHIFT] {
            let mut marks = Marks::default();
            let (mut lost, mut came): (u64, Vec<(u64, u64)>) = (0, Vec::new());
            for arrived in 1..200_000 {
                let now = begin + arrived * MS;
                lost += u64::from(arrived % 1000 == 0);
                came.push((now, lost));
                marks.count(arrived, lost, now);
                let recent = marks.recent(arrived, lost, now);
                if arrived < 2 * EVERY {
                    assert_eq!(recent, Recent::default());
                    continue;
                }
                assert!((EVERY..2 * EVERY).contains(&recent.came), "{recent:?} at {arrived}");
                let (at, lost_then) = came[(arrived - recent.came - 1) as usize];
                assert!(recent.from_ns <= at && at - recent.from_ns < 1 << SHIFT, "{recent:?}, was {at}");
                assert_eq!(recent.lost, lost - lost_then);
            }
        }
    }
}
