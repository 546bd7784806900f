//! From what receivers measured to the contract that timeouts rely on: λmin and δmax of one peer on one path. Pure.
//!
//! TO = HB + λmin + 2·δmax (FiDe §3.3). The paper's hosts are isolated well enough for δmax to be the largest jitter ever
//! seen. An ordinary host has no such number: watch it for long enough and it will be late by anything. So:
//!
//! * **2·δmax follows a far quantile of the long run** (p99.99, times a safety factor of 1½), not the maximum. What is
//!   measured is a gap between two heartbeats, the first as early and the second as late as can be: 2·δmax by the meaning of δmax. One
//!   outlier does not slow down detection for everybody, the seventh within a minute does (at HB 1 ms). And a heartbeat that
//!   misses its timeout on *both* paths is not yet a crash: the silent host's kernel is asked before anybody believes in
//!   it, so the timeout need not chase every outlier. While little is known yet, p99.99 *is* the maximum.
//! * **It rises at once and falls slowly**: up in the very window that showed the need; down only after a calm of
//!   [`Config::calm_windows`], by at most an eighth per window. A timeout too long costs milliseconds, one too
//!   short costs a verdict.
//! * **It stays within a floor and a ceiling.** The floor is what a host of that profile does to a thread sooner or later,
//!   whatever the last minute looked like. A lane that would need more than the ceiling keeps the ceiling and its contract
//!   shows as broken: better than a detector that silently grew useless.
//! * **The margin is watched against the contract in force**, pinned or measured: [`Window::margin_ns`], [`Breach`].
//!
//! The long run is one histogram aged exponentially: every window with samples takes 1/64 off all counts before its own
//! are added, so that half of what counts is younger than 45 windows. A ring of windows would forget sharply, but costs 32 KiB
//! for each of 512 paths where this takes one. A silent peer's history is kept as it is.

use fide_wire::jitter::{BUCKETS, bucket, upper_ns};
use fide_wire::verdict::Contract;

/// Whether a number is measured or given by the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// As measured, within its bounds.
    #[default]
    Measured,
    /// Exactly this many nanoseconds, whatever is measured; breaches are still reported.
    Pinned(u64),
}

/// How the contract is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// δmax is never less.
    pub floor_ns: u64,
    /// δmax is never more (but never less than the floor); absent: 20 periods.
    pub ceiling_ns: Option<u64>,
    /// Which part of heartbeats, per million, may be later than the quantile that δmax follows.
    pub tail_ppm: u32,
    /// What that quantile is multiplied with to give 2·δmax, in percent.
    pub safety_percent: u32,
    /// Windows without need before δmax falls, and without a breach before the contract counts as kept again.
    pub calm_windows: u32,
    /// λmin until the first round trip was measured.
    pub lambda_unknown_ns: u64,
    /// λmin: measured or pinned.
    pub lambda: Setting,
    /// δmax: measured or pinned.
    pub delta: Setting,
}

impl Config {
    /// For a host that shares its cores: a floor of 750 µs.
    #[must_use]
    pub const fn shared() -> Self {
        Self {
            floor_ns: 750_000,
            ceiling_ns: None,
            tail_ppm: 100,
            safety_percent: 150,
            calm_windows: 10,
            lambda_unknown_ns: 100_000,
            lambda: Setting::Measured,
            delta: Setting::Measured,
        }
    }

    /// For a host that gave the lane a core: a floor of 100 µs.
    #[must_use]
    pub const fn dedicated() -> Self {
        Self { floor_ns: 100_000, ..Self::shared() }
    }

    const fn ceiling(&self, period_ns: u64) -> u64 {
        let ceiling = match self.ceiling_ns {
            Some(ns) => ns,
            None => period_ns.saturating_mul(20),
        };
        if ceiling < self.floor_ns { self.floor_ns } else { ceiling }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::shared()
    }
}

/// A distribution in short. Values are upper bounds of histogram buckets (at most 25 % too high), the maximum is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// How many heartbeats.
    pub samples: u64,
    /// Half are below.
    pub p50_ns: u64,
    /// 99 % are below.
    pub p99_ns: u64,
    /// 99.9 % are below.
    pub p999_ns: u64,
    /// 99.99 % are below.
    pub p9999_ns: u64,
    /// The largest.
    pub max_ns: u64,
}

/// What changed about the contract's being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A heartbeat was later than 2·δmax: a timeout on this path alone would have expired.
    Broken {
        /// How late.
        worst_ns: u64,
        /// 2·δmax in force at that time.
        allowed_ns: u64,
    },
    /// [`Config::calm_windows`] windows without a breach.
    Kept,
}

/// What one window brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its jitter.
    pub jitter: Quantiles,
    /// 2·δmax in force minus the worst case of the window; negative when broken, 2·δmax when nothing arrived.
    pub margin_ns: i64,
    /// The contract was broken, or is kept again.
    pub breach: Option<Breach>,
    /// δmax or λmin is another one now: publish the contract.
    pub changed: bool,
    /// More jitter than the ceiling lets the contract admit.
    pub capped: bool,
}

type Counts = [u64; BUCKETS];

/// One count of the long run, in the fixed-point units it is kept in: aging must not round single outliers away.
const ONE: u64 = 1 << 16;
/// Each window takes 1/2^AGING off the long run.
const AGING: u32 = 6;
/// Windows that a smallest round trip is remembered for, at least.
const LAMBDA_EPOCH: u32 = 64;

/// The calibration of one peer on one path.
#[derive(Clone, Debug)]
pub struct Calibration {
    config: Config,
    period_ns: u64,
    /// The counters as they stood at the last feed; `None` after a restart.
    baseline: Option<[u32; BUCKETS]>,
    long: Counts,
    long_max_ns: u64,
    delta_ns: u64,
    measured: bool,
    calm: u32,
    broken: bool,
    quiet: u32,
    /// Smallest round trips: of this epoch and of the one before.
    rtt_ns: [Option<u64>; 2],
    epoch: u32,
    lambda_ns: u64,
}

impl Calibration {
    /// Nothing measured yet: δmax is the floor, from which it rises at once.
    #[must_use]
    pub fn new(config: Config, period_ns: u64) -> Self {
        let mut new = Self {
            config,
            period_ns,
            baseline: None,
            long: [0; BUCKETS],
            long_max_ns: 0,
            delta_ns: config.floor_ns.min(config.ceiling(period_ns)),
            measured: false,
            calm: 0,
            broken: false,
            quiet: 0,
            rtt_ns: [None; 2],
            epoch: 0,
            lambda_ns: 0,
        };
        new.lambda_ns = new.derive_lambda();
        new
    }

    /// The peer began a new incarnation: its counters start over, and the first window, its start-up, is not judged.
    pub fn restart(&mut self) {
        self.baseline = None;
    }

    /// Another period; the ceiling may follow it.
    pub fn set_period(&mut self, period_ns: u64) {
        self.period_ns = period_ns;
        self.delta_ns = self.delta_ns.min(self.config.ceiling(period_ns));
    }

    /// Another configuration, from a reload.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
        self.delta_ns = self.delta_ns.clamp(config.floor_ns, config.ceiling(self.period_ns));
        self.lambda_ns = self.derive_lambda();
    }

    /// A round trip to the peer on this path (now − echo − hold of a path report).
    pub fn round_trip(&mut self, rtt_ns: u64) {
        if rtt_ns > 0 {
            let least = self.rtt_ns[0].get_or_insert(rtt_ns);
            *least = rtt_ns.min(*least);
        }
    }

    /// Once per window: the *cumulative* histogram of the receive program, and the largest jitter since the last feed (0 where
    /// that is not known).
    ///
    /// The first feed only notes where counting starts. Counters that went backwards were started over: they count from 0.
    pub fn feed(&mut self, counters: &[u32; BUCKETS], max_ns: u64) -> Window {
        let Some(baseline) = self.baseline.replace(*counters) else {
            let changed = self.turn_lambda();
            return Window { margin_ns: signed(self.allowed_ns()), changed, ..Window::default() };
        };
        let window = difference(&baseline, counters);
        let samples: u64 = window.iter().sum();
        let worst_ns = if samples == 0 { 0 } else { worst(&window, max_ns) };
        let allowed_ns = self.allowed_ns();
        let breach = self.judge(samples, worst_ns, allowed_ns);
        let (before_ns, mut capped) = (self.delta_max_ns(), false);
        if samples > 0 {
            self.age_and_add(&window);
            self.long_max_ns = self.long_max_ns.max(worst_ns);
            capped = self.adapt();
        }
        let changed = self.turn_lambda() | (self.delta_max_ns() != before_ns);
        Window {
            jitter: quantiles(&window, 1, worst_ns),
            margin_ns: signed(allowed_ns).saturating_sub(signed(worst_ns)),
            breach,
            changed,
            capped,
        }
    }

    /// The contract for messages of at most `size_max` bytes.
    #[must_use]
    pub fn contract(&self, size_max: u32) -> Contract {
        Contract { period_ns: self.period_ns, size_max, lambda_min_ns: self.lambda_min_ns(), delta_max_ns: self.delta_max_ns() }
    }

    /// δmax in force.
    #[must_use]
    pub fn delta_max_ns(&self) -> u64 {
        match self.config.delta {
            Setting::Measured => self.delta_ns,
            Setting::Pinned(ns) => ns,
        }
    }

    /// λmin in force.
    #[must_use]
    pub fn lambda_min_ns(&self) -> u64 {
        self.lambda_ns
    }

    /// The long run; its maximum is that of the whole life of this calibration.
    #[must_use]
    pub fn long_run(&self) -> Quantiles {
        quantiles(&self.long, ONE, self.long_max_ns)
    }

    /// Whether the contract counts as broken now.
    #[must_use]
    pub fn broken(&self) -> bool {
        self.broken
    }

    fn allowed_ns(&self) -> u64 {
        self.delta_max_ns().saturating_mul(2)
    }

    fn judge(&mut self, samples: u64, worst_ns: u64, allowed_ns: u64) -> Option<Breach> {
        if worst_ns > allowed_ns {
            self.quiet = 0;
            return (!std::mem::replace(&mut self.broken, true)).then_some(Breach::Broken { worst_ns, allowed_ns });
        }
        if !self.broken || samples == 0 {
            return None;
        }
        self.quiet += 1;
        if self.quiet < self.config.calm_windows {
            return None;
        }
        self.broken = false;
        Some(Breach::Kept)
    }

    fn age_and_add(&mut self, window: &Counts) {
        for (long, new) in self.long.iter_mut().zip(window) {
            // A window adds at most 2^32 · 2^16 and aging keeps 64 of them: 2^54 a bucket, 2^61 in all.
            *long = *long - (*long >> AGING) + new * ONE;
        }
    }

    /// Moves δmax to where the long run wants it: up at once, down slowly. Says whether the ceiling cut it.
    fn adapt(&mut self) -> bool {
        let (floor, ceiling) = (self.config.floor_ns, self.config.ceiling(self.period_ns));
        let tail = quantile(&self.long, 1_000_000 - u64::from(self.config.tail_ppm.min(1_000_000)), 1_000_000);
        let wanted = scale(tail.min(self.long_max_ns), self.config.safety_percent).div_ceil(2);
        let target = wanted.clamp(floor, ceiling);
        if target >= self.delta_ns || !self.measured {
            self.measured = true;
            self.delta_ns = target;
            self.calm = 0;
        } else {
            self.calm = self.calm.saturating_add(1);
            // Not for less than an eighth: every change is published to the whole cluster.
            if self.calm > self.config.calm_windows && target < self.delta_ns - self.delta_ns / 8 {
                self.delta_ns -= self.delta_ns / 8;
            } else if self.calm > self.config.calm_windows && target == floor {
                self.delta_ns = floor;
            }
        }
        wanted > ceiling
    }

    /// One window older: at the end of an epoch the smallest round trip of the one before is forgotten, so that a route that
    /// became longer is noticed. A shorter one counts at once.
    fn turn_lambda(&mut self) -> bool {
        self.epoch += 1;
        if self.epoch >= LAMBDA_EPOCH {
            self.epoch = 0;
            // An epoch without samples says nothing.
            if self.rtt_ns[0].is_some() {
                self.rtt_ns = [None, self.rtt_ns[0]];
            }
        }
        let before = self.lambda_ns;
        self.lambda_ns = self.derive_lambda();
        self.lambda_ns != before
    }

    fn derive_lambda(&self) -> u64 {
        match self.config.lambda {
            Setting::Pinned(ns) => ns,
            Setting::Measured => self.rtt_ns.iter().flatten().min().map_or(self.config.lambda_unknown_ns, |rtt| rtt / 2),
        }
    }
}

/// What was counted between two readings.
fn difference(old: &[u32; BUCKETS], new: &[u32; BUCKETS]) -> Counts {
    let total = |c: &[u32; BUCKETS]| c.iter().map(|n| u64::from(*n)).sum::<u64>();
    let restarted = total(new) < total(old);
    // A single bucket that went back has wrapped (after seven weeks at 1 kHz): that window's count of it is a little short.
    std::array::from_fn(|i| u64::from(if restarted || new[i] < old[i] { new[i] } else { new[i] - old[i] }))
}

/// The largest jitter of a window: the exact maximum where it fits the histogram, else what the histogram says. The two
/// are not read in one instant.
fn worst(window: &Counts, max_ns: u64) -> u64 {
    let Some(top) = window.iter().rposition(|n| *n > 0) else { return max_ns };
    if bucket(max_ns) >= top { max_ns } else { upper_ns(top) - 1 }
}

/// The upper bound of the bucket below or in which `part` of `whole` of all samples lie; 0 without samples.
fn quantile(counts: &Counts, part: u64, whole: u64) -> u64 {
    let total: u128 = counts.iter().map(|n| u128::from(*n)).sum();
    if total == 0 {
        return 0;
    }
    let rank = (total * u128::from(part)).div_ceil(u128::from(whole)).max(1);
    let mut below = 0u128;
    for (i, n) in counts.iter().enumerate() {
        below += u128::from(*n);
        if below >= rank {
            return upper_ns(i);
        }
    }
    upper_ns(BUCKETS - 1)
}

fn quantiles(counts: &Counts, one: u64, max_ns: u64) -> Quantiles {
    let at = |part| quantile(counts, part, 10_000).min(max_ns);
    Quantiles {
        samples: counts.iter().sum::<u64>() / one,
        p50_ns: at(5_000),
        p99_ns: at(9_900),
        p999_ns: at(9_990),
        p9999_ns: at(9_999),
        max_ns,
    }
}

fn scale(ns: u64, percent: u32) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// A receive program: counts what it is told and takes the maximum out when read.
    #[derive(Clone)]
    struct Receiver {
        counters: [u32; BUCKETS],
        max_ns: u64,
    }

    impl Receiver {
        fn new() -> Self {
            Self { counters: [0; BUCKETS], max_ns: 0 }
        }
        fn see(&mut self, excess_ns: u64, times: u32) {
            self.counters[bucket(excess_ns)] = self.counters[bucket(excess_ns)].wrapping_add(times);
            self.max_ns = self.max_ns.max(excess_ns);
        }
        fn feed(&mut self, c: &mut Calibration) -> Window {
            c.feed(&self.counters, std::mem::take(&mut self.max_ns))
        }
    }

    const FLOOR: u64 = Config::shared().floor_ns;

    fn quiet_lane() -> (Calibration, Receiver) {
        let (mut c, mut r) = (Calibration::new(Config::shared(), MS), Receiver::new());
        r.feed(&mut c);
        for _ in 0..120 {
            r.see(20_000, 1_000);
            r.feed(&mut c);
        }
        (c, r)
    }

    #[test]
    fn a_quiet_lane_has_the_floor_and_detects_within_5_ms() {
        let (mut c, _) = quiet_lane();
        c.round_trip(40_000);
        c.feed(&[0; BUCKETS], 0);
        assert_eq!((c.delta_max_ns(), c.lambda_min_ns()), (FLOOR, 20_000));
        let contract = c.contract(100);
        assert_eq!(contract, Contract { period_ns: MS, size_max: 100, lambda_min_ns: 20_000, delta_max_ns: FLOOR });
        assert!(contract.timeout_ns() < 3 * MS);
        assert!(c.long_run().p9999_ns <= 25_000, "{:?}", c.long_run());
    }

    #[test]
    fn a_few_outliers_do_not_move_it_and_many_do_at_once() {
        let (mut c, mut r) = quiet_lane();
        for n in 1..=5 {
            r.see(20_000, 999);
            r.see(9 * MS, 1);
            let w = r.feed(&mut c);
            assert_eq!((c.delta_max_ns(), w.jitter.max_ns, w.margin_ns), (FLOOR, 9 * MS, -7_500_000), "outlier {n}");
            assert_eq!(w.breach.is_some(), n == 1, "a breach is one event, not one a window");
        }
        assert!(c.broken());
        r.see(20_000, 990);
        r.see(9 * MS, 10);
        let w = r.feed(&mut c);
        assert!(w.changed && !w.capped && 2 * c.delta_max_ns() >= 9 * MS, "{w:?}");
    }

    #[test]
    fn it_falls_slowly_after_a_calm_and_says_that_the_contract_is_kept() {
        let (mut c, mut r) = quiet_lane();
        r.see(6 * MS, 100);
        assert_eq!(r.feed(&mut c).breach, Some(Breach::Broken { worst_ns: 6 * MS, allowed_ns: 2 * FLOOR }));
        let high = c.delta_max_ns();
        let (mut kept, mut changes, mut windows) = (None, 0, 0);
        while c.delta_max_ns() > FLOOR {
            let before = c.delta_max_ns();
            r.see(20_000, 1_000);
            let w = r.feed(&mut c);
            windows += 1;
            assert!(windows < 1_000, "never falls");
            assert!(c.delta_max_ns() >= before - before / 8 || c.delta_max_ns() == FLOOR);
            assert!(windows > 10 || c.delta_max_ns() == high);
            changes += u32::from(w.changed);
            if let Some(Breach::Kept) = w.breach {
                kept.get_or_insert(windows);
            }
        }
        assert_eq!(kept, Some(10));
        assert!(windows > 64 && changes < 30, "{windows} windows, {changes} changes");
    }

    #[test]
    fn the_ceiling_holds_and_shows() {
        let (mut c, mut r) = quiet_lane();
        r.see(400 * MS, 500);
        let w = r.feed(&mut c);
        assert!(w.capped && w.margin_ns < 0);
        assert_eq!(c.delta_max_ns(), 20 * MS);
        c.set_period(2 * MS);
        r.see(400 * MS, 500);
        r.feed(&mut c);
        assert_eq!(c.delta_max_ns(), 40 * MS);
        c.set_period(MS);
        assert_eq!(c.delta_max_ns(), 20 * MS);
        // A ceiling below the floor is no ceiling: 20 periods of 10 µs on a shared host.
        assert_eq!(Calibration::new(Config::shared(), 10_000).delta_max_ns(), FLOOR);
    }

    #[test]
    fn pinned_numbers_stay_and_their_breach_is_reported() {
        let config = Config { lambda: Setting::Pinned(7), delta: Setting::Pinned(300_000), ..Config::shared() };
        let (mut c, mut r) = (Calibration::new(config, MS), Receiver::new());
        r.feed(&mut c);
        c.round_trip(99);
        r.see(2 * MS, 100);
        let w = r.feed(&mut c);
        assert_eq!((c.delta_max_ns(), c.lambda_min_ns(), w.margin_ns), (300_000, 7, -1_400_000));
        assert!(matches!(w.breach, Some(Breach::Broken { .. })) && !w.changed);
    }

    #[test]
    fn a_new_incarnations_start_up_is_not_judged() {
        let (mut c, mut r) = quiet_lane();
        c.restart();
        r = Receiver { counters: [0; BUCKETS], ..r };
        r.see(300 * MS, 1);
        assert_eq!(r.feed(&mut c).breach, None);
        r.see(20_000, 1_000);
        let w = r.feed(&mut c);
        assert_eq!((w.jitter.samples, w.breach, c.delta_max_ns()), (1_000, None, FLOOR));
    }

    #[test]
    fn counters_that_go_back_count_from_zero_and_wrapping_ones_go_on() {
        let (mut c, _) = quiet_lane();
        let mut fewer = [0; BUCKETS];
        fewer[bucket(20_000)] = 500;
        assert_eq!(c.feed(&fewer, 0).jitter.samples, 500);
        fewer[0] = u32::MAX;
        c.feed(&fewer, 0);
        fewer[0] = 3;
        fewer[1] = u32::MAX;
        assert_eq!(c.feed(&fewer, 0).jitter.samples, 3 + u64::from(u32::MAX));
    }

    #[test]
    fn silence_neither_ages_nor_heals() {
        let (mut c, mut r) = quiet_lane();
        r.see(9 * MS, 1);
        r.feed(&mut c);
        let before = c.long_run();
        for _ in 0..100 {
            let w = r.feed(&mut c);
            assert_eq!((w.breach, w.margin_ns), (None, 1_500_000));
        }
        assert_eq!(c.long_run(), before);
        assert!(c.broken());
    }

    #[test]
    fn a_longer_route_is_noticed_after_an_epoch_a_shorter_one_at_once() {
        let (mut c, r) = (Calibration::new(Config::shared(), MS), Receiver::new());
        assert_eq!(c.lambda_min_ns(), 100_000);
        let turn = |c: &mut Calibration, rtt| {
            c.round_trip(rtt);
            c.feed(&r.counters, 0)
        };
        assert!(turn(&mut c, 30_000).changed);
        assert!(turn(&mut c, 20_000).changed);
        assert!(!turn(&mut c, 0).changed);
        assert_eq!(c.lambda_min_ns(), 10_000);
        for _ in 0..2 * LAMBDA_EPOCH {
            turn(&mut c, 80_000);
        }
        assert_eq!(c.lambda_min_ns(), 40_000);
        for _ in 0..3 * LAMBDA_EPOCH {
            turn(&mut c, 0);
        }
        assert_eq!(c.lambda_min_ns(), 40_000, "no samples: the last is the best there is");
    }

    fn windows() -> impl Strategy<Value = Vec<Vec<(u64, u32)>>> {
        let sample = (prop_oneof![0..100_000u64, 0..30 * MS, any::<u64>()], prop_oneof![0..2_000u32, any::<u32>()]);
        proptest::collection::vec(proptest::collection::vec(sample, 0..6), 1..60)
    }

    proptest! {
        /// Whatever is fed, also by counters that jump about: within floor and ceiling, down by an eighth at most, no panic
        /// (debug builds check every overflow).
        #[test]
        fn always_within_bounds(hostile in proptest::collection::vec((proptest::array::uniform32(any::<u32>()), any::<u64>()), 1..60),
                                floor in 0u64..1 << 40, ceiling in proptest::option::of(any::<u64>()), period: u64,
                                tail_ppm: u32, safety_percent: u32, calm_windows in 0u32..20) {
            let config = Config { floor_ns: floor, ceiling_ns: ceiling, tail_ppm, safety_percent, calm_windows, ..Config::shared() };
            let mut c = Calibration::new(config, period);
            for (some, max_ns) in hostile {
                let counters = std::array::from_fn(|i| some[i % 32]);
                let before = c.delta_max_ns();
                let first = !c.measured;
                let w = c.feed(&counters, max_ns);
                prop_assert!(c.delta_max_ns() >= floor && c.delta_max_ns() <= config.ceiling(period));
                prop_assert!(first || c.delta_max_ns() >= before - before / 8 || c.delta_max_ns() == floor);
                prop_assert_eq!(w.breach.is_some_and(|b| b != Breach::Kept) && w.margin_ns >= 0, false);
                let _ = (c.contract(0).timeout_ns(), c.long_run());
            }
        }

        /// The same lane with every heartbeat later by the same factor never gets a shorter δmax.
        #[test]
        fn later_heartbeats_never_shorten_it(history in windows(), shift in 0u32..8) {
            let (mut a, mut b) = (Calibration::new(Config::shared(), MS), Calibration::new(Config::shared(), MS));
            let (mut ra, mut rb) = (Receiver::new(), Receiver::new());
            ra.feed(&mut a);
            rb.feed(&mut b);
            for window in history {
                for (ns, times) in window {
                    ra.see(ns, times.min(1 << 20));
                    rb.see(ns.checked_shl(shift).filter(|s| s >> shift == ns).unwrap_or(u64::MAX), times.min(1 << 20));
                }
                ra.feed(&mut a);
                rb.feed(&mut b);
                // Falling is in steps of an eighth from different heights, so the two may pass each other by one step.
                prop_assert!(b.delta_max_ns() >= a.delta_max_ns() - a.delta_max_ns() / 8, "{} {}", a.delta_max_ns(), b.delta_max_ns());
            }
        }

        /// As soon as more than the tail's share of the long run is later than x, δmax is at least x (below the ceiling).
        #[test]
        fn it_rises_in_the_same_window(calm in 0u32..200, late_ns in 4 * MS..15 * MS) {
            let (mut c, mut r) = (Calibration::new(Config::shared(), MS), Receiver::new());
            r.feed(&mut c);
            for _ in 0..calm {
                r.see(20_000, 1_000);
                r.feed(&mut c);
            }
            r.see(late_ns, 20);
            r.see(20_000, 980);
            let w = r.feed(&mut c);
            prop_assert!(2 * c.delta_max_ns() >= late_ns);
            prop_assert!(w.changed);
        }
    }
}
