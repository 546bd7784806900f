//! Which numbers of a sender were received: a sliding window against copies and replays (as RFC 4303, 3.4.3).

/// Words of the window.
const WORDS: usize = 16;
/// How far below the highest number one may be and still be told from a copy.
pub const WIDTH: u64 = (WORDS as u64 - 1) * 64;

/// The numbers of one incarnation of one sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    highest: u64,
    /// Nothing up to here is fresh.
    floor: u64,
    /// Bit `n % 64` of word `n / 64 % WORDS`, for the numbers in reach.
    bits: [u64; WORDS],
}

impl Window {
    /// Nothing up to `floor` is fresh, everything above it is.
    #[must_use]
    pub const fn new(floor: u64) -> Self {
        Self { highest: floor, floor, bits: [0; WORDS] }
    }

    /// Whether this number is fresh; it is not from now on.
    pub fn take(&mut self, number: u64) -> bool {
        if number <= self.floor || number.saturating_add(WIDTH) <= self.highest {
            return false;
        }
        // Words that enter the window forget what left it.
        let (top, word) = (self.highest / 64, number / 64);
        for entering in (top + 1..=word).take(WORDS) {
            self.bits[entering as usize % WORDS] = 0;
        }
        if word > top + WORDS as u64 {
            self.bits = [0; WORDS];
        }
        self.highest = self.highest.max(number);
        let (place, bit) = (word as usize % WORDS, 1 << (number % 64));
        let is_fresh = self.bits[place] & bit == 0;
        self.bits[place] |= bit;
        is_fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_fresh_once_in_any_order() {
        // Against a set, with jumps of every size around the window's.
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for reach in [1, 3, 64, 300, 959, 960, 1024, 5000] {
            let (mut window, mut taken, mut highest) = (Window::new(7), BTreeSet::new(), 7u64);
            for _ in 0..20_000 {
                let number = (highest + random(reach / 8 + 2)).saturating_sub(random(reach + 1));
                let is_old = number <= 7 || number + WIDTH <= highest;
                let expected = !is_old && taken.insert(number);
                assert_eq!(window.take(number), expected, "{number} below {highest}");
                highest = highest.max(if is_old { 0 } else { number });
            }
        }
    }

    #[test]
    fn the_largest_number_is_taken_once() {
        let mut window = Window::new(0);
        assert!(window.take(u64::MAX));
        assert!(!window.take(u64::MAX));
        assert!(!window.take(1));
    }
}
