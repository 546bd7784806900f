//! Whether another agent has this host's name.
//!
//! Packets of our own name come in when the network returns them, when somebody sends recordings of them, or when another agent has our name. Recordings can be of
//! any age, also of lives that nobody remembers, so no number, stamp or incarnation in them proves anything. What does is an answer: our announcements ask with a
//! fresh random number, every agent repeats in its own what another one of its name asks with, and nobody but another holder of the key can. An agent
//! never repeats a number of its own, so nothing that was ever sent by this one is such an answer.
//!
//! Pure: random numbers and what was heard come in, what to announce goes out.

use std::collections::VecDeque;

/// Numbers of ours that still count, the newest last. One a second: an answer takes much less.
const OUTSTANDING: usize = 3;
/// Numbers of ours that are never repeated, though somebody sends our announcements again.
const REMEMBERED: usize = 64;

/// What is known of others of this name.
#[derive(Debug, Default)]
pub struct Namesakes {
    /// With whether it was answered: each answer counts once.
    ours: VecDeque<(u64, bool)>,
    asking: bool,
    answer: Option<u64>,
    heard: u64,
}

impl Namesakes {
    /// Once a second: so many packets of our name have come in so far. Asks if there were new ones, with this random number; whether it does.
    pub fn look(&mut self, heard: u64, random: u64) -> bool {
        self.asking = std::mem::replace(&mut self.heard, heard) < heard;
        if self.asking {
            self.ours.push_back((random, false));
            self.ours.drain(..self.ours.len().saturating_sub(REMEMBERED));
        }
        self.asking
    }

    /// An announcement of our name says this. Whether another agent of this name has sent it, now.
    pub fn announced(&mut self, challenge: Option<u64>, answer: Option<u64>) -> bool {
        if let Some(number) = challenge.filter(|number| self.ours.iter().all(|(ours, _)| ours != number)) {
            self.answer = Some(number);
        }
        let mut newest = self.ours.iter_mut().rev().take(OUTSTANDING);
        let open = newest.find(|(ours, is_answered)| !*is_answered && Some(*ours) == answer);
        open.map(|(_, is_answered)| *is_answered = true).is_some()
    }

    /// The number to ask with, and the one to repeat, in the announcement that leaves now.
    pub fn announce(&mut self) -> (Option<u64>, Option<u64>) {
        (self.ours.back().map(|(ours, _)| *ours).filter(|_| self.asking), self.answer.take())
    }

    /// Whether somebody waits for an answer.
    #[must_use]
    pub fn owes_answer(&self) -> bool {
        self.answer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_while_nothing_of_our_name_comes() {
        let mut n = Namesakes::default();
        assert!(!n.look(0, 1));
        assert_eq!(n.announce(), (None, None));
        assert!(n.look(1, 2));
        assert_eq!(n.announce(), (Some(2), None));
        assert_eq!(n.announce(), (Some(2), None), "every part of it");
        assert!(!n.look(1, 3));
        assert_eq!(n.announce(), (None, None));
    }

    #[test]
    fn two_of_one_name_find_each_other_and_each_answer_counts_once() {
        let (mut a, mut b) = (Namesakes::default(), Namesakes::default());
        a.look(1, 100);
        b.look(1, 200);
        let (challenge, answer) = a.announce();
        assert!(!b.announced(challenge, answer), "a question is no answer");
        assert!(b.owes_answer());
        let (challenge, answer) = b.announce();
        assert_eq!((challenge, answer), (Some(200), Some(100)));
        assert!(!b.owes_answer());
        assert!(a.announced(challenge, answer), "nobody else could know it");
        assert!(!a.announced(challenge, answer), "a recording of that");
        let (challenge, answer) = a.announce();
        assert!(b.announced(challenge, answer));
    }

    /// Everything that this agent ever announced is sent to it again, in any order: also what a twin of it answered before.
    #[test]
    fn no_recording_is_a_proof() {
        let mut n = Namesakes::default();
        let mut recorded = Vec::new();
        let mut heard = 0;
        for second in 0..10_000u64 {
            heard += 1;
            n.look(heard, 0x1000_0000 + second);
            let says = n.announce();
            recorded.push(says);
            // An answer of an agent that had this name once, to a question of that time.
            recorded.push((None, says.0.map(|number| number.wrapping_sub(5))));
            for old in [second as usize, (second / 2) as usize, 0] {
                let (challenge, answer) = recorded[old.min(recorded.len() - 1)];
                let expected =
                    answer.is_some_and(|answer| n.ours.iter().rev().take(OUTSTANDING).any(|(ours, _)| *ours == answer));
                assert!(!expected && !n.announced(challenge, answer), "in second {second}");
            }
        }
        assert!(n.ours.len() <= REMEMBERED + 1);
    }

    #[test]
    fn what_was_asked_long_ago_is_no_question_any_more() {
        let mut n = Namesakes::default();
        for (heard, number) in (1..).zip(10..14) {
            n.look(heard, number);
        }
        assert!(!n.announced(None, Some(10)), "four seconds ago");
        assert!(n.announced(None, Some(11)));
        assert!(n.announced(None, Some(13)));
    }
}
