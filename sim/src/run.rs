//! Seeds by the thousand, on as many threads as wanted; each world by itself has none.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::invariants::{TABLE, Violation};
use crate::options::Options;
use crate::plan::Plan;
use crate::timeline::Timeline;
use crate::world::{Outcome, World};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Panics inside of worlds are findings, not noise.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                LAST.set(info.location().map(|at| format!("{}:{}", at.file(), at.line())));
            } else {
                usual(info);
            }
        }));
    });
}

thread_local! {
    static LAST: Cell<Option<String>> = const { Cell::new(None) };
}

/// Runs what may panic, and says what it said.
///
/// # Errors
/// A violation of `assertion`.
pub fn catching<T>(work: impl FnOnce() -> T) -> Result<T, Violation> {
    quiet();
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    result.map_err(|payload| {
        let said = payload.downcast_ref::<String>().cloned();
        let said = said.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
        let place = LAST.take().unwrap_or_default();
        Violation { property: "assertion", what: format!("{said} ({place})") }
    })
}

/// Lets a plan happen.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    match catching(|| World::new(plan.clone(), false).run()) {
        Ok(outcome) => outcome,
        Err(violation) => Outcome { violation: Some(violation), ..Outcome::default() },
    }
}

/// Lets a plan happen and writes down what did.
#[must_use]
pub fn watch(plan: &Plan) -> (Outcome, Timeline) {
    let (outcome, world) = watch_world(plan);
    (outcome, world.and_then(|mut world| world.take_timeline()).unwrap_or_default())
}

/// The same; the world as it was at the end.
#[must_use]
pub fn watch_world(plan: &Plan) -> (Outcome, Option<World>) {
    let mut world = match catching(|| World::new(plan.clone(), true)) {
        Ok(world) => world,
        Err(violation) => return (Outcome { violation: Some(violation), ..Outcome::default() }, None),
    };
    let outcome = match catching(|| world.run()) {
        Ok(outcome) => outcome,
        Err(violation) => Outcome { violation: Some(violation), ..Outcome::default() },
    };
    (outcome, Some(world))
}

/// How the timeline tells what broke without having been promised.
pub const UNPROMISED: &str = "(not promised here) ";

/// Whether this property breaks in the world of a plan, promised or not; the world does not end there.
#[must_use]
pub fn breaks(plan: &Plan, property: &str) -> Option<Violation> {
    watch_unjudged(plan).0.into_iter().find(|violation| violation.property == property)
}

/// Lets a plan happen to its end, whatever breaks: all that did, in order, and the world.
#[must_use]
pub fn watch_unjudged(plan: &Plan) -> (Vec<Violation>, Outcome, Option<World>) {
    let mut world = match catching(|| World::new(plan.clone(), true)) {
        Ok(world) => world,
        Err(violation) => return (vec![violation], Outcome::default(), None),
    };
    world.promise.safe = false;
    world.promise.live = false;
    world.notes_all = true;
    let (outcome, panicked) = match catching(|| world.run()) {
        Ok(outcome) => (outcome, None),
        Err(violation) => (Outcome::default(), Some(violation)),
    };
    let lines = world.timeline().map(Timeline::lines).unwrap_or_default();
    let broken = lines.iter().filter_map(|line| {
        let (name, what) = line.text.strip_prefix(UNPROMISED)?.split_once(": ")?;
        let property = TABLE.iter().find(|row| row.name == name)?.name;
        Some(Violation { property, what: what.to_owned() })
    });
    (broken.chain(panicked).collect(), outcome, Some(world))
}

/// What many worlds came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Worlds.
    pub seeds: u64,
    /// Protocol events.
    pub events: u64,
    /// Entries of the longest logs.
    pub entries: u64,
    /// Applied, by all members.
    pub applied: u64,
    /// Crashes told.
    pub crashes_told: u64,
    /// Members that stopped safely.
    pub halted: u64,
    /// Worlds whose end was not judged, by reason.
    pub excused: std::collections::BTreeMap<&'static str, u64>,
    /// Seeds in which something did not hold; the first few.
    pub failures: Vec<(u64, Violation)>,
    /// How many there were.
    pub failed: u64,
}

/// Failing seeds that are kept.
const KEPT: usize = 20;

impl Totals {
    /// Worlds whose end was judged, too.
    #[must_use]
    pub fn judged(&self) -> u64 {
        self.seeds - self.excused.values().sum::<u64>()
    }

    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.entries += outcome.entries;
        self.applied += outcome.applied;
        self.crashes_told += outcome.crashes_told;
        self.halted += outcome.halted;
        if let Some(why) = outcome.excused {
            *self.excused.entry(why).or_default() += 1;
        }
        if let Some(violation) = outcome.violation {
            self.failed += 1;
            if self.failures.len() < KEPT {
                self.failures.push((seed, violation));
            }
        }
    }

    /// The totals of both.
    pub fn merge(&mut self, other: Totals) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.entries += other.entries;
        self.applied += other.applied;
        self.crashes_told += other.crashes_told;
        self.halted += other.halted;
        for (why, count) in other.excused {
            *self.excused.entry(why).or_default() += count;
        }
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.sort_by_key(|(seed, _)| *seed);
        self.failures.truncate(KEPT);
    }
}

/// How far an [`explore`] is.
#[derive(Debug, Default)]
pub struct Progress {
    /// Worlds.
    pub seeds: AtomicU64,
    /// Protocol events.
    pub events: AtomicU64,
    /// Worlds in which something did not hold.
    pub failed: AtomicU64,
}

/// Runs these seeds on so many threads. Each time a thread has done some, `progress` grows; when `stop` is set, what was done so far is the result.
pub fn explore(options: Options, seeds: std::ops::Range<u64>, jobs: usize, stop: &AtomicBool, progress: &Progress) -> Totals {
    const PIECE: u64 = 64;
    let next = AtomicU64::new(seeds.start);
    let totals = Mutex::new(Totals::default());
    let work = || {
        let mut mine = Totals::default();
        while !stop.load(Ordering::Relaxed) {
            let from = next.fetch_add(PIECE, Ordering::Relaxed);
            if from >= seeds.end {
                break;
            }
            let before = (mine.seeds, mine.events, mine.failed);
            for seed in from..from.saturating_add(PIECE).min(seeds.end) {
                mine.add(seed, run(&Plan::generate(seed, options)));
            }
            progress.seeds.fetch_add(mine.seeds - before.0, Ordering::Relaxed);
            progress.events.fetch_add(mine.events - before.1, Ordering::Relaxed);
            progress.failed.fetch_add(mine.failed - before.2, Ordering::Relaxed);
        }
        // Poisoned only if a thread panicked outside of a world.
        totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner).merge(mine);
    };
    if jobs <= 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(work);
            }
        });
    }
    totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
