//! Whether this server's clock goes as the leader's: keys expire by the clock of the server that leads. One whose clock is ahead would give away what is locked,
//! and one whose clock is behind would keep it. No clock and no socket.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What was read longer ago counts no more: a leader writes something every 10 s, if nobody else does.
const WINDOW: Duration = Duration::from_secs(25);
/// A clock that seems ahead may be that of a server that reads late: so many readings, over so long, must say so.
const READINGS: usize = 3;
const SPAN: Duration = Duration::from_secs(1);
/// What is read within this time is one reading: the least.
const BUCKET: Duration = Duration::from_millis(100);
/// Readings that are kept: of the window.
const KEPT_MAX: usize = 250;

/// This server's time less the leader's, as entries were read: the difference of the clocks, and how long the entry took.
#[derive(Debug, Default)]
pub struct Clocks {
    read: VecDeque<(Instant, i64)>,
    newest_ms: i64,
}

impl Clocks {
    /// Another server leads.
    pub fn has_leader(&mut self) {
        self.read.clear();
    }

    /// An entry of the leader was read.
    pub fn read(&mut self, now: Instant, own_ms: u64, leader_ms: u64) {
        let ahead_ms = own_ms.cast_signed().saturating_sub(leader_ms.cast_signed());
        self.newest_ms = ahead_ms;
        match self.read.back_mut() {
            Some((at, least_ms)) if now.duration_since(*at) < BUCKET => *least_ms = ahead_ms.min(*least_ms),
            _ => self.read.push_back((now, ahead_ms)),
        }
        if self.read.len() > KEPT_MAX {
            self.read.pop_front();
        }
    }

    /// By how much this server's clock is ahead of the leader's, at most; negative: it is behind, by so much at least. Only if that is more than `max_ms`.
    pub fn is_off(&mut self, now: Instant, max_ms: u64) -> Option<i64> {
        while self.read.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.read.pop_front();
        }
        let ((first, _), (last, _)) = (self.read.front()?, self.read.back()?);
        let least = self.read.iter().map(|(_, ahead_ms)| *ahead_ms).min()?;
        let max_ms = i64::try_from(max_ms).unwrap_or(i64::MAX);
        // Read at different times: one that stood still reads all at once.
        let is_sure = self.read.len() >= READINGS && last.duration_since(*first) >= SPAN;
        if self.newest_ms < -max_ms { Some(self.newest_ms) } else { (is_sure && least > max_ms).then_some(least) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_off_is_known_and_late_entries_are_not_taken_for_one() {
        let (mut clocks, begin) = (Clocks::default(), Instant::now());
        let at = |ms: u64| begin + Duration::from_millis(ms);
        clocks.read(at(0), 100_003, 100_000);
        assert_eq!(clocks.is_off(at(0), 1000), None);
        // A server that stood still reads old entries at once.
        (0..50).for_each(|n| clocks.read(at(9000), 109_000, 100_000 + n));
        assert_eq!(clocks.is_off(at(9000), 1000), None, "one was in time");
        clocks.has_leader();
        (0..50).for_each(|n| clocks.read(at(9000), 109_000, 100_000 + n));
        assert_eq!(clocks.is_off(at(11_000), 1000), None, "all were read at once");
        clocks.read(at(12_000), 112_002, 112_000);
        assert_eq!(clocks.is_off(at(12_000), 1000), None);
        // Ahead for good.
        clocks.has_leader();
        (0..30).for_each(|n| clocks.read(at(20_000 + n * 100), 215_000 + n * 100, 200_000 + n * 100));
        assert_eq!(clocks.is_off(at(23_000), 1000), Some(15_000));
        // Until it is set right.
        clocks.read(at(23_100), 203_101, 203_100);
        assert_eq!(clocks.is_off(at(23_100), 1000), None);
        // Behind: no entry comes before it was proposed.
        clocks.read(at(24_000), 200_000, 204_000);
        assert_eq!(clocks.is_off(at(24_000), 1000), Some(-4000));
        clocks.read(at(24_100), 204_101, 204_100);
        assert_eq!(clocks.is_off(at(24_100), 1000), None, "it was set");
        clocks.read(at(24_200), 200_000, 204_200);
        assert_eq!(clocks.is_off(at(90_000), 1000), None, "nothing is known any more");
    }
}
