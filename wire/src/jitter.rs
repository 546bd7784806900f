//! The jitter histogram that the receive program keeps for every sender and path, and everybody else reads.
//!
//! What is counted is what threatens a timeout: how much later than one period after its predecessor a heartbeat arrived
//! (late sender, network and receiver together; no clocks are compared). Buckets are logarithmic with four steps an octave, the
//! unit 256 ns: below 1 µs exact to the unit, above it to 25 %.

/// Number of buckets.
pub const BUCKETS: usize = 128;
/// log2 of the unit in nanoseconds.
pub const UNIT_SHIFT: u32 = 8;

/// The bucket that counts `ns`.
#[must_use]
pub const fn bucket(ns: u64) -> usize {
    let v = ns >> UNIT_SHIFT;
    if v < 4 {
        return v as usize;
    }
    let e = 63 - v.leading_zeros() as usize;
    let index = (e - 1) * 4 + ((v >> (e - 2)) & 3) as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// The smallest value that does not belong to bucket `index` or an earlier one any more: its upper bound, exclusive.
#[must_use]
pub const fn upper_ns(index: usize) -> u64 {
    if index < 4 {
        return ((index as u64) + 1) << UNIT_SHIFT;
    }
    let e = index / 4 + 1;
    let sub = (index % 4) as u64;
    ((4 + sub + 1) << (e - 2)) << UNIT_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_contain_what_they_count() {
        assert_eq!(bucket(0), 0);
        for i in 0..BUCKETS - 1 {
            assert_eq!(bucket(upper_ns(i) - 1), i, "{i}");
            assert_eq!(bucket(upper_ns(i)), i + 1, "{i}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
