#![allow(dead_code, missing_docs)] // each fuzz target uses one of them
//! What is tried with arbitrary bytes on every core, by `fuzz/` without end and by `main.rs` for a moment: the bytes choose what a few members
//! are handed, of what the others really said and of what no correct one says. After every call
//!
//! * nothing has panicked, and the invariants hold;
//! * if it was refused, the state is what it was (but for the time that passed, where a core looks at the clock first) and the counter of this reason, and no other, grew by one;
//! * what is kept, and what is to be done, is within bounds.

pub mod broadcast;
pub mod bytes;
pub mod engines;
pub mod gate;
pub mod log;
pub mod membership;
pub mod messages;
pub mod paxos;
pub mod world;

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use fide_proto::group::{Refusals, Refused};

/// Everything but the refusal counters, which hash to nothing.
pub fn state<T: Hash>(of: &T) -> (u64, u64) {
    struct Mix(u64, u64);
    impl Mix {
        fn word(&mut self, word: u64) {
            self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            self.1 = (self.1.rotate_left(17) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
    }
    impl Hasher for Mix {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            let (words, rest) = bytes.as_chunks::<8>();
            words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
            rest.iter().for_each(|byte| self.word(u64::from(*byte)));
        }
    }
    let mut mix = Mix(1, 2);
    of.hash(&mut mix);
    (mix.0, mix.1)
}

/// A refusal is counted once, for its reason.
pub fn assert_counted(before: &Refusals, after: &Refusals, why: Refused) {
    for reason in Refused::ALL {
        assert_eq!(after.of(reason), before.of(reason) + u64::from(reason == why), "refused with {why:?}: {reason:?}");
    }
}

/// Does `call`, with what must hold of it. `time` is what the call does before it looks at what it was handed.
pub fn checked<T: Clone + Hash + Debug, R>(
    subject: &mut T,
    refusals: impl Fn(&T) -> Refusals,
    time: impl FnOnce(&mut T),
    call: impl FnOnce(&mut T) -> Result<R, Refused>,
) -> Result<R, Refused> {
    let mut before = subject.clone();
    let counted = refusals(subject);
    let result = call(subject);
    match &result {
        Ok(_) => assert_eq!(refusals(subject).total(), counted.total(), "what is taken is not refused"),
        Err(why) => {
            time(&mut before);
            assert!(state(&before) == state(subject), "refused with {why:?}, and changed from\n{before:?}\nto\n{subject:?}");
            assert_counted(&counted, &refusals(subject), *why);
        }
    }
    result
}
