//! Search over every state that a model can reach. Breadth first, so that the first violation found is one of the shortest; depth first where there are so
//! many states that only their hashes can be kept.
//!
//! Why not stateright: 0.31 brings a web server and a random number generator, and what is wanted here is small: a panic in a core (its own
//! invariants) is a violation with a trace, and a state in which nothing need happen any more is judged by a property of its own (termination).
//! Whether stateright can be brought to do both, and at what speed, was not tried.
//!
//! States are told apart by 64 bits of their hash, as in TLC and stateright: among 10⁷ states two fall together, and hide what is behind one of
//! them, with a probability of 3·10⁻⁶.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::{self, Debug};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A world that is small enough.
pub trait Model {
    type State: Clone + Hash;
    type Event: Clone + Debug;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// What can happen next. Empty: a dead end, which [`Model::quiet`] judges.
    fn events(&self, state: &Self::State, events: &mut Vec<Self::Event>);

    /// It happens. An error is a violation of safety, and so is a panic.
    fn step(&self, state: &mut Self::State, event: &Self::Event) -> Result<(), String>;

    /// Whether this can be the last event for ever: what is not made to happen by fairness, as a crash.
    fn is_optional(&self, event: &Self::Event) -> bool;

    /// Nothing but what is optional can happen here: everybody who lives must have got what was promised.
    fn quiet(&self, state: &Self::State) -> Result<(), String>;

    /// The same for states of which whatever can happen is the same: those that are equal, or differ only in names.
    fn fingerprint(&self, state: &Self::State) -> u64 {
        fingerprint(state)
    }
}

/// Why a search stopped, and how far it came.
#[derive(Debug)]
pub struct Report {
    pub name: &'static str,
    pub states: usize,
    pub steps: usize,
    /// Longest of the shortest ways from the start.
    pub depth: usize,
    /// States in which nothing need happen any more.
    pub quiet: usize,
    pub took: Duration,
    pub violation: Option<Violation>,
    /// Every state was seen.
    pub complete: bool,
}

#[derive(Debug)]
pub struct Violation {
    pub what: String,
    /// The events that lead there.
    pub trace: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, states, steps, depth, quiet, took, .. } = self;
        write!(f, "{name}: {states} states, {steps} steps, depth {depth}, {quiet} quiet, {:.1} s", took.as_secs_f64())?;
        if !self.complete && self.violation.is_none() {
            f.write_str(", NOT complete")?;
        }
        if let Some(violation) = &self.violation {
            write!(f, "\n  {} after {} steps:", violation.what, violation.trace.len())?;
            for (i, event) in violation.trace.iter().enumerate() {
                write!(f, "\n  {:3} {event}", i + 1)?;
            }
        }
        Ok(())
    }
}

/// Most states of one search: what they need fits into the memory of a small machine.
const STATES_MAX: usize = 40_000_000;

/// The same depth first, where less is kept of each.
const STATES_MAX_DEEP: usize = 400_000_000;

/// The longest that one breadth-first search may take: three times what the slowest one takes.
const TIME_MAX: Duration = Duration::from_secs(900);

/// For keys that are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

pub fn fingerprint<T: Hash>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A part of a state that most steps leave alone: copied when it changes, hashed once.
#[derive(Clone, Debug)]
pub struct Part<T> {
    value: Arc<T>,
    hash: u64,
}

impl<T: Clone + Hash> Part<T> {
    pub fn new(value: T) -> Self {
        let hash = fingerprint(&value);
        Self { value: Arc::new(value), hash }
    }

    pub fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        let result = how(Arc::make_mut(&mut self.value));
        self.hash = fingerprint(&*self.value);
        result
    }
}

impl<T> std::ops::Deref for Part<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// How one state was reached first.
struct Origin {
    from: u32,
    /// The place of the event among those of `from`.
    event: u32,
}

/// Sees every state, or stops at the first violation.
pub fn explore<M: Model>(name: &'static str, model: &M) -> Report {
    let begun = Instant::now();
    let mut report =
        Report { name, states: 1, steps: 0, depth: 0, quiet: 0, took: Duration::ZERO, violation: None, complete: false };
    let start = model.start();
    let mut seen: HashMap<u64, (), BuildHasherDefault<AsIs>> = HashMap::default();
    seen.insert(model.fingerprint(&start), ());
    let mut origins = vec![Origin { from: 0, event: 0 }];
    let mut frontier = VecDeque::from([(0u32, 0usize, start)]);
    let mut events = Vec::new();
    while let Some((at, depth, state)) = frontier.pop_front() {
        report.depth = depth;
        events.clear();
        model.events(&state, &mut events);
        if events.iter().all(|event| model.is_optional(event)) {
            report.quiet += 1;
            if let Err(what) = model.quiet(&state) {
                report.violation = Some(Violation { what, trace: trace(model, &origins, at, None) });
                break;
            }
        }
        for (i, event) in events.iter().enumerate() {
            report.steps += 1;
            let mut next = state.clone();
            if let Err(what) = guarded(model, &mut next, event) {
                report.violation = Some(Violation { what, trace: trace(model, &origins, at, Some(i)) });
                break;
            }
            if let Entry::Vacant(vacant) = seen.entry(model.fingerprint(&next)) {
                vacant.insert(());
                frontier.push_back((origins.len() as u32, depth + 1, next));
                origins.push(Origin { from: at, event: i as u32 });
            }
        }
        if report.violation.is_some() || origins.len() > STATES_MAX || begun.elapsed() > TIME_MAX {
            break;
        }
    }
    report.complete = frontier.is_empty() && report.violation.is_none();
    report.states = origins.len();
    report.took = begun.elapsed();
    println!("{report}");
    report
}

/// As [`explore`], depth first: every state once, but only the way to the present one is kept, so that what is remembered of a state is its
/// hash. A violation is not one of the shortest, and the depth is that of the longest way that was gone.
pub fn explore_deep<M: Model>(name: &'static str, model: &M) -> Report {
    let begun = Instant::now();
    let mut report =
        Report { name, states: 1, steps: 0, depth: 0, quiet: 0, took: Duration::ZERO, violation: None, complete: false };
    let mut seen: HashSet<u64, BuildHasherDefault<AsIs>> = HashSet::default();
    let mut way: Vec<Branch<M>> = Vec::new();
    let mut next = Some(model.start());
    'search: loop {
        if let Some(state) = next.take()
            && seen.insert(model.fingerprint(&state))
        {
            let mut events = Vec::new();
            model.events(&state, &mut events);
            let is_quiet = events.iter().all(|event| model.is_optional(event));
            way.push(Branch { state, events, tried: 0 });
            report.depth = report.depth.max(way.len() - 1);
            if is_quiet {
                report.quiet += 1;
                if let Err(what) = model.quiet(&way[way.len() - 1].state) {
                    way.pop();
                    report.violation = Some(Violation { what, trace: gone(&way) });
                    break;
                }
            }
        }
        while let Some(branch) = way.last_mut() {
            let Some(event) = branch.events.get(branch.tried) else {
                way.pop();
                continue;
            };
            branch.tried += 1;
            report.steps += 1;
            let mut state = branch.state.clone();
            if let Err(what) = guarded(model, &mut state, event) {
                report.violation = Some(Violation { what, trace: gone(&way) });
                break 'search;
            }
            next = Some(state);
            break;
        }
        if next.is_none() || seen.len() > STATES_MAX_DEEP {
            break;
        }
        if report.steps.is_multiple_of(1 << 22) {
            println!("{name}: {} states, {} steps, {:.0} s", seen.len(), report.steps, begun.elapsed().as_secs_f64());
        }
    }
    report.complete = way.is_empty() && report.violation.is_none();
    report.states = seen.len();
    report.took = begun.elapsed();
    println!("{report}");
    report
}

/// A state on the present way, and how many of its events were tried.
struct Branch<M: Model> {
    state: M::State,
    events: Vec<M::Event>,
    tried: usize,
}

fn gone<M: Model>(way: &[Branch<M>]) -> Vec<String> {
    way.iter().map(|branch| format!("{:?}", branch.events[branch.tried - 1])).collect()
}

fn guarded<M: Model>(model: &M, state: &mut M::State, event: &M::Event) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| model.step(state, event))).unwrap_or_else(|why| {
        let why = why.downcast_ref::<String>().cloned().or_else(|| why.downcast_ref::<&str>().map(|why| (*why).to_owned()));
        Err(format!("panic: {}", why.unwrap_or_default()))
    })
}

fn trace<M: Model>(model: &M, origins: &[Origin], mut at: u32, last: Option<usize>) -> Vec<String> {
    let mut ways: Vec<usize> = last.into_iter().collect();
    while at != 0 {
        let Origin { from, event } = origins[at as usize];
        ways.push(event as usize);
        at = from;
    }
    let mut state = model.start();
    let mut told = Vec::new();
    for way in ways.into_iter().rev() {
        let mut events = Vec::new();
        model.events(&state, &mut events);
        told.push(format!("{:?}", events[way]));
        // The last one may be the one that panics.
        let _ = guarded(model, &mut state, &events[way]);
    }
    told
}

impl Report {
    /// Every state was seen, none is wrong, and there were so many that the check is one.
    #[track_caller]
    pub fn assert_holds(&self, states_min: usize, depth_min: usize) {
        assert!(self.violation.is_none(), "{self}");
        assert!(self.complete, "{self}");
        assert!(
            self.states >= states_min && self.depth >= depth_min,
            "at least {states_min} states and depth {depth_min}: {self}"
        );
        assert!(self.quiet > 0, "nothing was ever finished: {self}");
    }

    /// The explorer found this.
    #[track_caller]
    pub fn assert_fails(&self, with: &str) {
        let found = self.violation.as_ref().is_some_and(|violation| violation.what.contains(with));
        assert!(found, "must fail with {with:?}: {self}");
    }
}
